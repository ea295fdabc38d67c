//! Records the last write and the last reads of each cell in a block's shared memory, and what has synchronized the
//! block's threads since. This record decides whether an access races with an earlier one.
//!
//! Time is measured by the number of the block's synchronizations so far. Most accesses need only one comparison: the
//! earlier access is older than the last barrier of all threads. The others are checked against the list of later
//! synchronizations, which is exact.

mod cells;
mod log;
mod row;
mod stamp;
mod thread;

pub(crate) use cells::Shadow;
pub(crate) use stamp::Stamp;
pub(crate) use thread::{How, Unordered};
