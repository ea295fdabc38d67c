//! The parts that every layer of the virtual GPU uses: handles, status codes, source locations, host threads, and
//! device memory.

pub mod array;
mod debug_info;
pub mod handle;
mod loaded_file;
pub mod map;
pub mod mapped_file;
pub mod memory;
pub mod number_map;
pub mod range_map;
pub mod recorded;
pub mod sorted;
pub mod source_location;
mod stack;
pub mod status;
pub mod sync;
pub mod team;
pub mod tensor_map;
pub mod texture;
pub mod thread;

pub use loaded_file::path_of_code;
