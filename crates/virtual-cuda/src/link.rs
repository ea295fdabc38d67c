//! The linker: joins PTX texts to one module. Its output is PTX, which `cuModuleLoadData` loads.

use std::collections::BTreeMap;
use std::ffi::{CString, c_uint, c_void};
use std::sync::{Mutex, MutexGuard};

use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::engine;
use crate::module::{ptx_text, read_file};
use crate::pointer::{Bytes, Out, Source, Text};
use crate::types::handle;

/// `CUlinkState`
pub type LinkState = *mut c_void;

/// An option's value, which may be a number or an address.
pub type OptionValue = *mut c_void;

/// `CU_JIT_NUM_OPTIONS`
const OPTIONS: c_uint = 34;
/// `CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES`, `CU_JIT_ERROR_LOG_BUFFER`, and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`
const INFO_SIZE: c_uint = 4;
const ERROR_LOG: c_uint = 5;
const ERROR_SIZE: c_uint = 6;
/// `CU_JIT_INPUT_PTX`; the other inputs, up to 5, are machine code or intermediate code.
const PTX: c_uint = 1;

/// A pending link.
struct Link {
    inputs: Vec<String>,
    /// The program's buffer for errors and its size.
    log: Option<(usize, usize)>,
    /// Where the number of bytes in each log goes: for information and for errors.
    sizes: [Option<usize>; 2],
    output: Option<CString>,
}

static LINKS: Mutex<BTreeMap<u64, Link>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<u64, Link>> {
    LINKS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn not_a_link(state: LinkState) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidHandle, format!("{state:p} is not a pending link, or is no longer one"))
}

/// `cuLinkCreate`: honors the options for the logs. The information log stays empty. Other options have no effect, because
/// the virtual GPU interprets PTX and doesn't compile it.
pub(crate) fn create(
    count: c_uint,
    options: Source<c_uint>,
    values: Out<OptionValue>,
    to: Out<LinkState>,
) -> CudaResult<()> {
    let engine = engine::get()?;
    engine.current_device()?;
    if to.is_null() || count > OPTIONS || count > 0 && values.is_null() {
        return Err(invalid(format!("cuLinkCreate: {count} options, or a pointer that is null")));
    }
    let options = options.values(count as usize)?;
    if let Some(unknown) = options.iter().find(|&&option| option >= OPTIONS) {
        return Err(invalid(format!("cuLinkCreate: {unknown} is not a CUjit_option")));
    }
    let place = |option| options.iter().position(|&known| known == option);
    let slot = |index: usize| values.address() + index * size_of::<OptionValue>();
    let read = |index: usize| Source::<usize>::at(slot(index)).value("the option's value");
    let log = match (place(ERROR_LOG), place(ERROR_SIZE)) {
        (Some(log), Some(size)) => Some((read(log)?, read(size)? as u32 as usize)).filter(|log| log.0 != 0),
        _ => None,
    };
    let sizes = [INFO_SIZE, ERROR_SIZE].map(|option| place(option).map(slot));
    let made = engine.state().new_handle();
    let link = Link { inputs: Vec::new(), log, sizes, output: None };
    link.report("")?;
    lock().insert(made, link);
    to.give(handle(made))
}

impl Link {
    /// Writes an error to the program's log, cut off at its size, and the number of bytes in each log.
    fn report(&self, message: &str) -> CudaResult<()> {
        let mut written = 0;
        if let Some((at, size)) = self.log.filter(|log| log.1 > 0) {
            let len = message.len().min(size - 1);
            let mut text = message.as_bytes()[..len].to_vec();
            text.push(0);
            Out::<u8>::at(at).give_all(&text)?;
            written = len;
        }
        let [info, error] = self.sizes;
        info.map_or(Ok(()), |at| Out::<usize>::at(at).give(0))?;
        error.map_or(Ok(()), |at| Out::<usize>::at(at).give(written))
    }
}

/// Adds PTX to a link, after checking it.
fn add(state: LinkState, kind: c_uint, image: &[u8], name: &str) -> CudaResult<()> {
    let mut links = lock();
    let link = links.get_mut(&(state as u64)).ok_or_else(|| not_a_link(state))?;
    let checked = match kind {
        PTX => ptx_text(image).and_then(|text| engine::get()?.check_part(text).map(|()| text.to_owned())),
        0 | 2..=5 => {
            let message = "virtual GPU: only PTX can be linked (CU_JIT_INPUT_PTX): cubins, fatbins, objects, libraries, \
                           and NVVM code are not supported";
            Err(Error::new(CudaStatus::NoBinaryForGpu, message))
        }
        _ => Err(invalid(format!("{kind} is not a CUjitInputType"))),
    };
    match checked {
        Ok(text) => {
            link.inputs.push(text);
            Ok(())
        }
        Err(error) => {
            link.report(&format!("{name}: {}", error.message))?;
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
    let image = data.until_zero(size).ok_or_else(|| invalid("cuLinkAddData: the data is null"))?;
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
        link.report(&format!("the linked module: {}", error.message))?;
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
