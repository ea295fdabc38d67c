//! The bodies of the functions for a stream's attributes. They are kept and returned, but change nothing.

use std::ffi::{c_int, c_uint};

use virtual_gpu::device::PRIORITIES;
use virtual_gpu_core::status::{CudaResult, invalid};

use crate::engine;
use crate::graph_change::AttributeValue;
use crate::pointer::{Out, Source};
use crate::types::{Stream, stream};

/// `CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY`
const SYNCHRONIZATION: c_uint = 3;
/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`
const PRIORITY: c_uint = 8;

fn check(number: c_uint) -> CudaResult<()> {
    match number {
        // The access policy window, how to wait, the priority, and the memory synchronization domain with its map.
        1 | SYNCHRONIZATION | PRIORITY | 9 | 10 => Ok(()),
        _ => Err(invalid(format!("{number} is not an attribute of a stream"))),
    }
}

pub(crate) fn get(of: Stream, number: c_uint, to: Out<AttributeValue>) -> CudaResult<()> {
    check(number)?;
    let mut value = engine::get()?.stream_attribute(stream(of), number)?;
    if number == SYNCHRONIZATION && value[0] == 0 {
        // CU_SYNC_POLICY_AUTO
        value[0] = 1;
    }
    if number == PRIORITY {
        value[0] = engine::get()?.stream_figures(stream(of))?.priority as c_uint;
    }
    to.give(value)
}

/// `cuStreamSetAttribute`. A priority that is out of range is clamped.
pub(crate) fn set(of: Stream, number: c_uint, value: Source<AttributeValue>) -> CudaResult<()> {
    check(number)?;
    let value = value.value("the pointer to the value of the attribute")?;
    let engine = engine::get()?;
    match number {
        PRIORITY => {
            let (least, greatest) = PRIORITIES;
            engine.set_stream_priority(stream(of), (value[0] as c_int).clamp(greatest, least))
        }
        SYNCHRONIZATION if !(1..=4).contains(&value[0]) => {
            Err(invalid(format!("{} is not a CUsynchronizationPolicy (1 to 4)", value[0])))
        }
        _ => engine.set_stream_attribute(stream(of), number, value),
    }
}

pub(crate) fn copy(to: Stream, from: Stream) -> CudaResult<()> {
    engine::get()?.copy_stream_attributes(stream(to), stream(from))
}
