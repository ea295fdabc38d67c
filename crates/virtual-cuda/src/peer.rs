//! Direct access by one GPU to another GPU's memory, which is not supported. Copies and NCCL work across GPUs, but a
//! kernel can't access another GPU's memory.

use std::ffi::{c_int, c_uint};

use virtual_gpu::engine::ContextHandle;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::engine;
use crate::pointer::Out;
use crate::types::{Context, Device};

/// `CUdevice_P2PAttribute`: performance rank, access, atomics, arrays, and partial atomics only.
const ATTRIBUTES: std::ops::RangeInclusive<c_uint> = 1..=5;

/// `cuDeviceCanAccessPeer`
pub(crate) fn can_access(to: Out<c_int>, device: Device, peer: Device) -> CudaResult<()> {
    let engine = engine::get()?;
    engine.check_device(device)?;
    engine.check_device(peer)?;
    to.give(0)
}

/// `cuDeviceGetP2PAttribute`
pub(crate) fn attribute(to: Out<c_int>, attribute: c_uint, from: Device, peer: Device) -> CudaResult<()> {
    let engine = engine::get()?;
    if engine.check_device(from)? == engine.check_device(peer)? {
        return Err(Error::new(CudaStatus::InvalidDevice, format!("both devices are {from}")));
    }
    if !ATTRIBUTES.contains(&attribute) {
        return Err(Error::new(
            CudaStatus::InvalidValue,
            format!("{attribute} is not a peer-to-peer attribute"),
        ));
    }
    to.give(0)
}

/// `cuCtxEnablePeerAccess`
pub(crate) fn enable(peer: Context, flags: c_uint) -> CudaResult<()> {
    check_peer(peer)?;
    if flags != 0 {
        return Err(Error::new(CudaStatus::InvalidValue, format!("the flags must be 0, not {flags}")));
    }
    let message = "virtual GPU: a kernel can't access another GPU's memory: call cuDeviceCanAccessPeer first";
    Err(Error::new(CudaStatus::PeerAccessUnsupported, message))
}

/// `cuCtxDisablePeerAccess`
pub(crate) fn disable(peer: Context) -> CudaResult<()> {
    check_peer(peer)?;
    Err(Error::new(CudaStatus::PeerAccessNotEnabled, "peer access was not enabled"))
}

/// Checks that `peer` is a context other than the current one.
fn check_peer(peer: Context) -> CudaResult<()> {
    let engine = engine::get()?;
    let peer = ContextHandle(peer as u64);
    engine.current_device()?;
    engine.check_context(peer)?;
    match engine.current() == Some(peer) {
        true => Err(Error::new(CudaStatus::InvalidContext, "the peer is the current context itself")),
        false => Ok(()),
    }
}
