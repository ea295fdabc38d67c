//! Barriers, calls, and clocks.

use super::register::{Address, Condition, Predicate, Slot};

/// The reduction of `bar.red` over the threads' predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "PTX's names")]
pub enum Reduction {
    Count,
    All,
    Any,
}

/// A block-wide barrier.
#[derive(Clone, Debug, PartialEq)]
pub struct Barrier {
    /// The barrier's number, below sixteen.
    pub id: Slot,
    /// The number of threads that take part; `None` means all threads of the block.
    pub threads: Option<Slot>,
    /// `arrive`: the threads don't wait.
    pub arrives_only: bool,
    /// `.aligned`: all threads of a warp reach it together.
    pub aligned: bool,
    /// For `bar.red`: the reduction, the source, and where the result goes.
    pub reduction: Option<(Reduction, Condition, ReductionTarget)>,
}

/// Where `bar.red` stores its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "a count or a truth value")]
pub enum ReductionTarget {
    Word(Slot),
    Predicate(Predicate),
}

/// A call to a function that calls itself, directly or through others.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The function's index in [`Kernel`](crate::Kernel)'s list of frames.
    pub frame: u32,
    /// Its first instruction.
    pub target: u32,
    /// Where each of the caller's arguments is in local memory.
    pub arguments: Box<[Address]>,
    /// Where each result is stored in local memory.
    pub results: Box<[Address]>,
}

/// A call to a function that the driver provides. Each address is the location of an argument, or of the result, in
/// local memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SystemCall {
    /// `vprintf`
    Print {
        /// The format string's address.
        format: Address,
        /// The address of the arguments.
        arguments: Address,
        /// The number of arguments read.
        result: Address,
    },
    /// `__assertfail`
    AssertFail {
        /// The address of the expression's text.
        message: Address,
        /// The address of the file's name.
        file: Address,
        /// The line.
        line: Address,
        /// The address of the function's name.
        function: Address,
    },
    /// `malloc`, or `__cuda_syscall_aligned_malloc` if there is an alignment.
    Allocate {
        /// The number of bytes.
        size: Address,
        /// The alignment in bytes.
        alignment: Option<Address>,
        /// The address of the memory.
        result: Address,
    },
    /// `free`
    Free {
        /// The address of the memory.
        memory: Address,
    },
}

/// The clock to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `%clock`, `%clock_hi`, `%clock64`: the number of instructions executed by this thread.
    Instructions,
    /// `%globaltimer`: nanoseconds.
    GlobalTimer,
}
