//! Runs exercises' checks and reports the results.

mod compiler;
mod event;
mod program;
mod score;
mod stop;
mod timeline;
mod verdict;

pub use event::Event;
pub use program::{Options, Tests, build, cargo};
pub use score::{score, score_in, scores};
pub use stop::Stop;
pub use timeline::{timeline, timelines};
pub use verdict::{Checked, Counts, Failure, Outcome, Verdict, to_do, verdict};
