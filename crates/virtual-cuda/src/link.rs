//! The linker: joins PTX texts to one module. Its output is PTX, which `cuModuleLoadData` loads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{CString, c_uint, c_void};
use std::sync::{Mutex, MutexGuard};

use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::jit_log::{Logs, OptionValue};
use crate::module::{ptx_text, read_file};
use crate::pointer::{Bytes, Out, Source, Text};
use crate::types::handle;
use crate::{engine, fatbin};

/// `CUlinkState`
pub type LinkState = *mut c_void;

/// `CU_JIT_INPUT_PTX` and `CU_JIT_INPUT_FATBINARY`; the other inputs, up to 5, are machine code or intermediate code.
const PTX: c_uint = 1;
const FAT_BINARY: c_uint = 2;

/// A pending link.
struct Link {
    inputs: Vec<String>,
    logs: Logs,
    output: Option<CString>,
}

static LINKS: Mutex<BTreeMap<u64, Link>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<u64, Link>> {
    LINKS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn not_a_link(state: LinkState) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidHandle, format!("{state:p} is not a pending link, or is no longer one"))
}

/// `cuLinkCreate`: see [`Logs::of`] for the options.
pub(crate) fn create(
    count: c_uint,
    options: Source<c_uint>,
    values: Out<OptionValue>,
    to: Out<LinkState>,
) -> CudaResult<()> {
    let engine = engine::get()?;
    engine.current_device()?;
    to.check("the pointer to the link")?;
    let logs = Logs::of("cuLinkCreate", count, options, values)?;
    let made = engine.state().new_handle();
    lock().insert(made, Link { inputs: Vec::new(), logs, output: None });
    to.give(handle(made))
}

/// Adds PTX to a link, after checking it.
fn add(state: LinkState, kind: c_uint, image: &[u8], name: &str) -> CudaResult<()> {
    let mut links = lock();
    let link = links.get_mut(&(state as u64)).ok_or_else(|| not_a_link(state))?;
    let text = match kind {
        PTX => ptx_text(image).map(Cow::into_owned),
        FAT_BINARY => fatbin::ptx(image),
        0 | 3..=5 => {
            let message = "virtual GPU: only PTX can be linked (CU_JIT_INPUT_PTX), and the PTX of fat binaries: cubins, \
                           objects, libraries, and NVVM code are not supported";
            Err(Error::new(CudaStatus::NoBinaryForGpu, message))
        }
        _ => Err(invalid(format!("{kind} is not a CUjitInputType"))),
    };
    match text.and_then(|text| engine::get()?.check_part(&text).map(|()| text)) {
        Ok(text) => {
            link.inputs.push(text);
            Ok(())
        }
        Err(error) => {
            link.logs.report(&format!("{name}: {}", error.message))?;
            Err(error)
        }
    }
}

/// `cuLinkAddData`
#[expect(clippy::too_many_arguments, reason = "cuLinkAddData has this many parameters")]
pub(crate) fn add_data(
    state: LinkState,
    kind: c_uint,
    data: Bytes,
    size: usize,
    name: Text,
    _: c_uint,
    _: Source<c_uint>,
    _: Out<OptionValue>,
) -> CudaResult<()> {
    let image = match kind {
        FAT_BINARY => fatbin::at(data, size),
        _ => data.until_zero(size),
    };
    let image = image.ok_or_else(|| invalid("cuLinkAddData: the data is null"))?;
    add(state, kind, image, name.text().unwrap_or("an input"))
}

/// `cuLinkAddFile`
pub(crate) fn add_file(
    state: LinkState,
    kind: c_uint,
    path: Text,
    _: c_uint,
    _: Source<c_uint>,
    _: Out<OptionValue>,
) -> CudaResult<()> {
    let image = read_file("cuLinkAddFile", path)?;
    add(state, kind, &image, path.text().unwrap_or("a file"))
}

/// `cuLinkComplete`: the output is a C string, which lives until the link is destroyed.
///
/// # Errors
/// Returns `InvalidPtx` if the inputs don't fit together, or if there are none.
pub(crate) fn complete(state: LinkState, to: Out<OptionValue>, size: Out<usize>) -> CudaResult<()> {
    let mut links = lock();
    let link = links.get_mut(&(state as u64)).ok_or_else(|| not_a_link(state))?;
    let mut text = link.inputs.first().cloned().unwrap_or_default();
    for input in link.inputs.iter().skip(1) {
        // The first input's directives hold for the whole module.
        let is_header = |line: &&str| {
            [".version", ".target", ".address_size"].iter().any(|it| line.trim_start().starts_with(it))
        };
        input.lines().filter(|line| !is_header(line)).for_each(|line| text.extend([line, "\n"]));
    }
    if let Err(error) = engine::get()?.kernel_names(&text) {
        link.logs.report(&format!("the linked module: {}", error.message))?;
        return Err(error);
    }
    let output = CString::new(text).map_err(|_| invalid("cuLinkComplete: an input contains a byte 0"))?;
    size.give_if_wanted(output.as_bytes_with_nul().len());
    to.give(output.as_ptr().cast_mut().cast())?;
    link.output = Some(output);
    Ok(())
}

/// `cuLinkDestroy`
pub(crate) fn destroy(state: LinkState) -> CudaResult<()> {
    lock().remove(&(state as u64)).map(drop).ok_or_else(|| not_a_link(state))
}
