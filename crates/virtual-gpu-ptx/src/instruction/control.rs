//! Barriers, calls, and clocks.

use super::register::{Address, Condition, Predicate, Slot};

/// What `bar.red` computes of the threads' predicates.
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
    /// Which of the sixteen.
    pub id: Slot,
    /// Threads that take part; `None`: all of the block.
    pub threads: Option<Slot>,
    /// `arrive`: doesn't wait.
    pub arrives_only: bool,
    /// `.aligned`: all threads of a warp reach it together.
    pub aligned: bool,
    /// `bar.red`: the reduction, the source, and where the result goes.
    pub reduction: Option<(Reduction, Condition, ReductionTarget)>,
}

/// Where `bar.red` puts its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "a count or a truth value")]
pub enum ReductionTarget {
    Word(Slot),
    Predicate(Predicate),
}

/// A call of a function that calls itself, directly or through others.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The function, in [`Kernel`](crate::Kernel)'s list of frames.
    pub frame: u32,
    /// Its first instruction.
    pub target: u32,
    /// Where in local memory the caller has each argument.
    pub arguments: Box<[Address]>,
    /// Where in local memory each result goes.
    pub results: Box<[Address]>,
}

/// A call of a function that the driver brings. Each address is where an argument, or the result, lies in local memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SystemCall {
    /// `vprintf`
    Print {
        /// The format's address.
        format: Address,
        /// The address of the arguments.
        arguments: Address,
        /// The number of arguments read.
        result: Address,
    },
    /// `__assertfail`
    AssertFail {
        /// Address of the expression's text.
        message: Address,
        /// Address of the file's name.
        file: Address,
        /// The line.
        line: Address,
        /// Address of the function's name.
        function: Address,
    },
}

/// Which of the running clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `%clock`, `%clock_hi`, `%clock64`: instructions of this thread.
    Instructions,
    /// `%globaltimer`: nanoseconds.
    GlobalTimer,
}
