//! Runs kernels: none, for now.

use std::convert::Infallible;

use crate::memory::{AllocationId, DeviceMemory};
use crate::ptx::Kernel;

/// A launch.
#[expect(missing_docs, reason = "named as in cuLaunchKernel")]
pub struct Launch<'a> {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    pub parameters: &'a [u8],
    pub globals: &'a [u64],
    pub start_ns: u64,
    pub instruction_limit: u64,
}

/// What a launch did.
pub struct Execution {
    /// The first read of bytes that nothing wrote.
    pub unwritten: Option<Infallible>,
    /// Bytes that were touched.
    pub touched: Vec<Touched>,
}

/// How bytes were touched.
#[derive(PartialEq)]
#[expect(missing_docs, reason = "each is its name")]
pub enum Access {
    Read,
    Write,
    Atomic,
}

/// Bytes that a launch touched.
pub struct Touched {
    /// Of which allocation.
    pub allocation: AllocationId,
    /// Which bytes.
    pub range: std::ops::Range<u64>,
    /// How.
    pub access: Access,
}

/// Why a kernel stopped.
#[expect(missing_docs, reason = "each is its name")]
pub enum FaultKind {
    Address { address: u64 },
    Shared { address: u64 },
    Misaligned { address: u64 },
    Trap,
    DivergentBarrier,
    Endless,
}

/// A kernel's end before its time.
pub struct Fault {
    /// Why.
    pub kind: FaultKind,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

/// Runs a kernel.
///
/// # Errors
/// What stopped it.
pub fn run(_: &Kernel, _: &Launch, _: &mut DeviceMemory) -> Result<Execution, Fault> {
    Ok(Execution { unwritten: None, touched: Vec::new() })
}
