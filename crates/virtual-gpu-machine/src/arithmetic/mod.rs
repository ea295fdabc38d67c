//! Arithmetic on registers: each operation is defined once, for one thread's values, and runs in a loop over the
//! threads in a mask.

mod approximate;
mod bits;
pub(crate) mod carry;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod double;
pub(crate) mod fp8;
pub(crate) mod half;
pub(crate) mod long;
mod map;
pub(crate) mod mixed;
mod parts;
pub(crate) mod predicate;
pub(crate) mod rounding;
pub(crate) mod select;
pub(crate) mod single;
pub(crate) mod word;
