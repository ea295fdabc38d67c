//! Names streams by their roles.

use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::CudaStream;

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
