//! Names streams by their roles, and creates a second stream.

use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;

use crate::library::Library;
use crate::tier::{Tier, attached};

/// Names a stream by its role, such as `compute`. The virtual GPU's reports then contain "the compute stream" instead
/// of "stream 2". A real GPU makes no reports, so it needs no names.
///
/// # Errors
/// Fails if the virtual driver can't be found.
pub fn name_stream(stream: &Arc<CudaStream>, role: &str) -> anyhow::Result<()> {
    if attached() != Some(Tier::Virtual) {
        return Ok(());
    }
    // The driver is already loaded, so its name is enough.
    let driver = Library::open(Path::new("libcuda.so"))?;
    if let Some(symbol) = driver.symbol(c"virtualGpuNameStream") {
        // SAFETY: the function takes a stream's handle and a C string, and returns nothing.
        let name: extern "C" fn(*mut c_void, *const c_char) = unsafe { std::mem::transmute(symbol) };
        let role = CString::new(role)?;
        name(stream.cu_stream().cast(), role.as_ptr());
    }
    Ok(())
}

/// Creates a compute stream on the communicator's GPU, and names this stream and the communicator's. Turns off cudarc's event
/// tracking, so that only a program's own events order the work on both.
///
/// # Errors
/// Returns any error from the driver.
///
/// # Safety
/// Events or a synchronize call must order all uses of a buffer on different streams, including its allocation and its release.
pub unsafe fn untracked_compute_stream(comm: &Comm) -> anyhow::Result<Arc<CudaStream>> {
    let context = comm.context();
    // SAFETY: the caller promises the same.
    unsafe { context.disable_event_tracking() };
    let compute = context.new_stream()?;
    name_stream(&compute, "compute")?;
    name_stream(&comm.stream(), "comm")?;
    Ok(compute)
}
