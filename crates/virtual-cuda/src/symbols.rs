//! `cuGetProcAddress`: finds a driver function by its base name and the CUDA version that a program was written for.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::address_of;
use crate::pointer::{Out, Text};

/// Every driver function of CUDA 12.9. The file describes its own format.
const VERSIONS: &str = include_str!("versions.txt");

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`. The other flags are 0 (default) and 1 (legacy default stream).
const PER_THREAD: c_ulonglong = 2;

/// The result of a search, with its `CUdriverProcAddressQueryResult`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    /// The full name of the function.
    Function(String),
    /// No version of CUDA up to 12.9 has the function.
    Unknown,
    /// The function appeared in a later version of CUDA than the requested one.
    TooNew,
}

/// `cuGetProcAddress_v2`: finds the newest function with the base name `symbol` that existed in CUDA `version`
/// (1000 * major + 10 * minor). With flag 2, prefers the form for the thread's own default stream. If there is none,
/// succeeds with a null address and the reason in `status`, which may be null ("CUDA Driver API", driver entry point access).
pub(crate) fn address_and_status(
    symbol: Text,
    address: Out<*mut c_void>,
    version: c_int,
    flags: c_ulonglong,
    status: Out<c_uint>,
) -> CudaResult<()> {
    let (found, at) = look_up(symbol, version, flags)?;
    address.give(at.map_or(std::ptr::null_mut(), |at| at as *mut c_void))?;
    status.give_if_wanted(match found {
        Found::Function(_) if at.is_some() => 0,
        Found::Function(_) | Found::Unknown => 1,
        Found::TooNew => 2,
    });
    Ok(())
}

/// `cuGetProcAddress`, as in CUDA 11.3 to 11.8: returns `NotFound` instead of a status.
pub(crate) fn address(
    symbol: Text,
    address: Out<*mut c_void>,
    version: c_int,
    flags: c_ulonglong,
) -> CudaResult<()> {
    let (_, at) = look_up(symbol, version, flags)?;
    address.give(at.map_or(std::ptr::null_mut(), |at| at as *mut c_void))?;
    at.map(drop).ok_or_else(|| {
        let symbol = symbol.text().unwrap_or_default();
        let message = format!("cuGetProcAddress: CUDA {version} has no driver function `{symbol}`");
        Error::new(CudaStatus::NotFound, message)
    })
}

fn look_up(symbol: Text, version: c_int, flags: c_ulonglong) -> CudaResult<(Found, Option<usize>)> {
    let symbol = symbol.text().ok_or_else(|| invalid("cuGetProcAddress: the name is null or not UTF-8"))?;
    if flags > PER_THREAD {
        return Err(invalid(format!("cuGetProcAddress: the flags must be 0, 1, or 2, not {flags:#x}")));
    }
    let found = find(symbol, version, flags == PER_THREAD);
    let at = if let Found::Function(name) = &found { address_of(name) } else { None };
    Ok((found, at))
}

/// Finds the full name of the function with the base name `symbol` in CUDA `version`.
fn find(symbol: &str, version: c_int, per_thread: bool) -> Found {
    let is_meant = |line: &&str| line.split(' ').next() == Some(symbol) && !symbol.starts_with('#');
    let Some(line) = VERSIONS.lines().find(is_meant) else { return Found::Unknown };
    let mut words = line.split(' ').skip(1);
    let versions: Vec<c_int> = words.by_ref().map_while(|word| word.parse().ok()).collect();
    // The word that ended the versions is the suffix of the forms for the thread's own default stream.
    let suffix = line.split(' ').find(|word| word.starts_with("pt"));
    let own = words.filter_map(|word| word.parse().ok()).filter(|&own: &c_int| own <= version).max();
    let name = |version: c_int| match versions.iter().filter(|&&known| known <= version).count() {
        0 => None,
        1 => Some(symbol.to_owned()),
        count => Some(format!("{symbol}_v{count}")),
    };
    let found = match (per_thread, own, suffix) {
        (true, Some(own), Some(suffix)) => name(own).map(|name| format!("{name}_{suffix}")),
        _ => name(version),
    };
    found.map_or(Found::TooNew, Found::Function)
}
