//! The bodies of the functions that write numbers in memory, and wait for them, in the order of a stream.

use std::ffi::{c_uint, c_ulonglong};

use virtual_gpu::engine::{Condition, Value, ValueOperation};
use virtual_gpu_core::status::{CudaResult, invalid, unsupported};

use crate::engine;
use crate::pointer::Source;
use crate::types::{DevicePointer, Stream, stream};

/// `CUstreamBatchMemOpParams`: the operation determines which fields it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BatchOperation {
    pub(crate) operation: c_uint,
    /// The flags of an operation without an address.
    pub(crate) own_flags: c_uint,
    pub(crate) address: DevicePointer,
    pub(crate) value: c_ulonglong,
    pub(crate) flags: c_uint,
    pub(crate) alias: DevicePointer,
    pub(crate) rest: c_ulonglong,
}

/// `CU_STREAM_WAIT_VALUE_FLUSH`
const FLUSH: c_uint = 1 << 30;

/// `CUstreamBatchMemOpType`
const WAIT_32: c_uint = 1;
const WRITE_32: c_uint = 2;
const WAIT_64: c_uint = 4;
const WRITE_64: c_uint = 5;
const BARRIER: c_uint = 6;

/// The most operations in a batch: their number must be less than 256.
const MOST: c_uint = 255;

fn write(at: DevicePointer, size: usize, number: u64, flags: c_uint) -> CudaResult<ValueOperation> {
    match flags {
        0 => Ok(ValueOperation::Write(Value { at, size, number })),
        1 => Err(unsupported("CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER")),
        _ => Err(invalid(format!("{flags:#x} are not the flags of a value write"))),
    }
}

fn wait(at: DevicePointer, size: usize, number: u64, flags: c_uint) -> CudaResult<ValueOperation> {
    if flags & FLUSH != 0 {
        return Err(unsupported(
            "CU_STREAM_WAIT_VALUE_FLUSH (CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES is 0)",
        ));
    }
    let condition = match flags {
        0 => Condition::AtLeast,
        1 => Condition::Equal,
        2 => Condition::And,
        3 => Condition::Nor,
        _ => return Err(invalid(format!("{flags:#x} are not the flags of a value wait"))),
    };
    Ok(ValueOperation::Wait(Value { at, size, number }, condition))
}

fn enqueue(of: Stream, operations: &[ValueOperation]) -> CudaResult<()> {
    engine::get()?.enqueue_values(stream(of), operations)
}

pub(crate) fn write_32(of: Stream, at: DevicePointer, value: c_uint, flags: c_uint) -> CudaResult<()> {
    enqueue(of, &[write(at, 4, u64::from(value), flags)?])
}

pub(crate) fn write_64(of: Stream, at: DevicePointer, value: c_ulonglong, flags: c_uint) -> CudaResult<()> {
    enqueue(of, &[write(at, 8, value, flags)?])
}

pub(crate) fn wait_32(of: Stream, at: DevicePointer, value: c_uint, flags: c_uint) -> CudaResult<()> {
    enqueue(of, &[wait(at, 4, u64::from(value), flags)?])
}

pub(crate) fn wait_64(of: Stream, at: DevicePointer, value: c_ulonglong, flags: c_uint) -> CudaResult<()> {
    enqueue(of, &[wait(at, 8, value, flags)?])
}

/// `cuStreamBatchMemOp`: enqueues all operations in their order, or none of them.
pub(crate) fn batch(
    of: Stream,
    count: c_uint,
    given: Source<BatchOperation>,
    flags: c_uint,
) -> CudaResult<()> {
    enqueue(of, &operations("cuStreamBatchMemOp", count, given, flags)?)
}

/// Returns the operations of a batch.
///
/// # Errors
/// Returns `NotSupported` for a flush of remote writes.
pub(crate) fn operations(
    caller: &str,
    count: c_uint,
    given: Source<BatchOperation>,
    flags: c_uint,
) -> CudaResult<Vec<ValueOperation>> {
    if flags != 0 {
        return Err(invalid(format!("{caller}: the flags must be 0, not {flags:#x}")));
    }
    if count > MOST {
        return Err(invalid(format!("{caller}: {count} operations are more than {MOST}")));
    }
    given.values(count as usize)?.into_iter().map(of_batch).collect()
}

fn of_batch(given: BatchOperation) -> CudaResult<ValueOperation> {
    let BatchOperation { operation, own_flags, address, value, flags, .. } = given;
    // A number of 32 bits is the first half of the field.
    let word = value & u64::from(u32::MAX);
    match operation {
        WAIT_32 => wait(address, 4, word, flags),
        WRITE_32 => write(address, 4, word, flags),
        3 => Err(unsupported("CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES")),
        WAIT_64 => wait(address, 8, value, flags),
        WRITE_64 => write(address, 8, value, flags),
        BARRIER if own_flags <= 1 => Ok(ValueOperation::Barrier),
        BARRIER => Err(invalid(format!("{own_flags:#x} is not a type of memory barrier"))),
        _ => Err(invalid(format!("{operation} is not a CUstreamBatchMemOpType (1 to 6)"))),
    }
}

/// Returns an operation as a program describes it.
pub(crate) fn described(operation: &ValueOperation) -> BatchOperation {
    match *operation {
        ValueOperation::Write(Value { at, size, number }) => {
            let operation = if size == 4 { WRITE_32 } else { WRITE_64 };
            BatchOperation { operation, address: at, value: number, ..Default::default() }
        }
        ValueOperation::Wait(Value { at, size, number }, condition) => {
            let operation = if size == 4 { WAIT_32 } else { WAIT_64 };
            let flags = condition as c_uint;
            BatchOperation { operation, address: at, value: number, flags, ..Default::default() }
        }
        ValueOperation::Barrier => BatchOperation { operation: BARRIER, ..Default::default() },
    }
}
