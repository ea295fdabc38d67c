//! The bodies of the functions that write numbers in memory, and wait for them, in the order of a stream.

use std::ffi::{c_uint, c_ulonglong};

use virtual_gpu::engine::{Condition, Value, ValueOperation};
use virtual_gpu_core::status::{CudaResult, invalid, unsupported};

use crate::engine;
use crate::pointer::Source;
use crate::types::{DevicePointer, Stream, stream};

/// `CUstreamBatchMemOpParams`: the operation determines which fields it has.
#[derive(Clone, Copy, Debug)]
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

/// `cuStreamBatchMemOp`: enqueues all operations in their order, or none of them. Barriers change nothing, because each
/// operation sees what the earlier ones have done.
///
/// # Errors
/// Returns `NotSupported` for a flush of remote writes.
pub(crate) fn batch(
    of: Stream,
    count: c_uint,
    operations: Source<BatchOperation>,
    flags: c_uint,
) -> CudaResult<()> {
    if flags != 0 {
        return Err(invalid(format!("cuStreamBatchMemOp: the flags must be 0, not {flags:#x}")));
    }
    if count > MOST {
        return Err(invalid(format!("cuStreamBatchMemOp: {count} operations are more than {MOST}")));
    }
    let mut all = Vec::new();
    for given in operations.values(count as usize)? {
        let BatchOperation { operation, own_flags, address, value, flags, .. } = given;
        // A number of 32 bits is the first half of the field.
        let word = value & u64::from(u32::MAX);
        all.push(match operation {
            1 => wait(address, 4, word, flags)?,
            2 => write(address, 4, word, flags)?,
            3 => return Err(unsupported("CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES")),
            4 => wait(address, 8, value, flags)?,
            5 => write(address, 8, value, flags)?,
            6 if own_flags <= 1 => continue,
            6 => return Err(invalid(format!("{own_flags:#x} is not a type of memory barrier"))),
            _ => return Err(invalid(format!("{operation} is not a CUstreamBatchMemOpType (1 to 6)"))),
        });
    }
    enqueue(of, &all)
}
