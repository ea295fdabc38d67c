//! Images that are not PTX text, and the logs of the compiler.
//!
//! `fatbinary` of CUDA 13.0 wrote the files in `fatbins/`, from a kernel that writes the number of its architecture.
//! `several.fatbin` has machine code for `sm_90` and PTX for `compute_70`, `compute_90`, and `compute_100`.

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

use cudarc::driver::DriverError;
use cudarc::driver::sys::{self, CUjit_option, CUresult};
use lab::Check;

use crate::device::untracked;
use crate::fails;
use crate::raw::address;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("images::the_ptx_of_a_fat_binary_runs", fat_binaries),
        Check::new("images::a_fat_binary_without_ptx_for_this_gpu_is_named", without_ptx),
        Check::new("images::a_damaged_fat_binary_is_an_error", damaged),
        Check::new("images::a_fat_binary_can_be_linked", linked),
        Check::new("images::logs_are_written", logs),
    ]
}

const PLAIN: &[u8] = include_bytes!("../fatbins/plain.fatbin");
const LZ4: &[u8] = include_bytes!("../fatbins/lz4.fatbin");
const ZSTD: &[u8] = include_bytes!("../fatbins/zstd.fatbin");
const SEVERAL: &[u8] = include_bytes!("../fatbins/several.fatbin");
const MACHINE_CODE: &[u8] = include_bytes!("../fatbins/machine_code.fatbin");
const NEWER: &[u8] = include_bytes!("../fatbins/newer.fatbin");

/// What nvcc puts around a fat binary.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    data: *const u8,
    file: *const u8,
}

fn load(image: *const c_void) -> Result<sys::CUmodule, DriverError> {
    let mut module = null_mut();
    // SAFETY: the image is a fat binary, its wrapper, or a C string.
    unsafe { sys::cuModuleLoadData(&raw mut module, image) }.result()?;
    Ok(module)
}

/// Runs the kernel of a module, and returns the number that it writes.
fn capability(module: sys::CUmodule) -> anyhow::Result<u32> {
    let stream = untracked(0).new_stream()?;
    let buffer = stream.alloc_zeros::<u32>(1)?;
    let (mut function, to) = (null_mut(), address(&buffer));
    let mut parameters = [(&raw const to).cast_mut().cast::<c_void>()];
    // SAFETY: the kernel has one parameter, a pointer to a number.
    unsafe {
        sys::cuModuleGetFunction(&raw mut function, module, c"capability".as_ptr()).result()?;
        let (of, parameters) = (stream.cu_stream(), parameters.as_mut_ptr());
        sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, of, parameters, null_mut()).result()?;
    }
    Ok(stream.clone_dtoh(&buffer)?[0])
}

fn fat_binaries() -> anyhow::Result<()> {
    let _context = untracked(0);
    for image in [PLAIN, LZ4, ZSTD, SEVERAL] {
        assert_eq!(capability(load(image.as_ptr().cast())?)?, 90);
        let wrapper =
            Wrapper { magic: 0x4662_43b1, version: 1, data: image.as_ptr(), file: std::ptr::null() };
        let wrapper = (&raw const wrapper).cast::<c_void>();
        assert_eq!(capability(load(wrapper)?)?, 90);
        let mut module = null_mut();
        // SAFETY: as in `load`.
        unsafe { sys::cuModuleLoadFatBinary(&raw mut module, wrapper) }.result()?;
        assert_eq!(capability(module)?, 90);
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("several.fatbin");
    std::fs::write(&file, SEVERAL)?;
    let (file, mut module) = (CString::new(file.to_str().unwrap_or_default())?, null_mut());
    // SAFETY: the path is a C string.
    unsafe { sys::cuModuleLoad(&raw mut module, file.as_ptr()) }.result()?;
    assert_eq!(capability(module)?, 90);
    let (mut library, mut module) = (null_mut(), null_mut());
    // SAFETY: there are no options.
    unsafe {
        let no = (null_mut(), null_mut(), null_mut(), null_mut());
        sys::cuLibraryLoadData(&raw mut library, SEVERAL.as_ptr().cast(), no.0, no.1, 0, no.2, no.3, 0)
            .result()?;
        sys::cuLibraryGetModule(&raw mut module, library).result()?;
    }
    assert_eq!(capability(module)?, 90);
    Ok(())
}

fn without_ptx() -> anyhow::Result<()> {
    let _context = untracked(0);
    let no_binary = CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
    for (image, has) in [(MACHINE_CODE, "machine code for sm_90"), (NEWER, "PTX for compute_100")] {
        fails(load(image.as_ptr().cast()), no_binary, &["this fat binary has no PTX", has, "nvcc -gencode"]);
    }
    let cubin = c"\x7fELF\x02".as_ptr().cast();
    fails(load(cubin), no_binary, &["a cubin is machine code", "nvcc -ptx", "nvrtcGetPTX"]);
    Ok(())
}

fn damaged() -> anyhow::Result<()> {
    let _context = untracked(0);
    let folder = tempfile::tempdir()?;
    let (file, mut module) = (folder.path().join("damaged.fatbin"), null_mut());
    let path = CString::new(file.to_str().unwrap_or_default())?;
    let mut load_bytes = |bytes: &[u8]| -> anyhow::Result<_> {
        std::fs::write(&file, bytes)?;
        // SAFETY: the path is a C string.
        Ok(unsafe { sys::cuModuleLoad(&raw mut module, path.as_ptr()) }.result())
    };
    let invalid = CUresult::CUDA_ERROR_INVALID_IMAGE;
    for image in [PLAIN, LZ4, ZSTD, SEVERAL] {
        for len in (4..image.len()).step_by(7) {
            fails(load_bytes(&image[..len])?, invalid, &["this fat binary is cut off or damaged"]);
        }
    }
    // In memory, nothing but the header says how long a fat binary is. A structure around one may also be its own content.
    let mut endless = PLAIN.to_vec();
    endless[8..16].fill(0xff);
    fails(load(endless.as_ptr().cast()), invalid, &["this fat binary is cut off or damaged"]);
    let mut own = Wrapper { magic: 0x4662_43b1, version: 1, data: std::ptr::null(), file: std::ptr::null() };
    own.data = (&raw const own).cast();
    fails(load((&raw const own).cast()), invalid, &["not PTX"]);
    // No change of a byte does harm. Some have no effect, or make another program of it.
    for image in [PLAIN, LZ4, ZSTD] {
        for at in 4..image.len() {
            for bits in [0x01, 0x80, 0xff] {
                let mut changed = image.to_vec();
                changed[at] ^= bits;
                let _ = load_bytes(&changed)?;
            }
        }
    }
    Ok(())
}

fn linked() -> anyhow::Result<()> {
    let _context = untracked(0);
    use sys::CUjitInputType::CU_JIT_INPUT_FATBINARY;
    let (mut state, mut image, mut size) = (null_mut(), null_mut(), 0);
    // SAFETY: there are no options, and the fat binaries outlive the link.
    unsafe {
        sys::cuLinkCreate_v2(0, null_mut(), null_mut(), &raw mut state).result()?;
        let add = |image: &'static [u8]| {
            let data = image.as_ptr().cast_mut().cast();
            let (name, no) = (c"a fat binary", (null_mut(), null_mut()));
            let kind = CU_JIT_INPUT_FATBINARY;
            sys::cuLinkAddData_v2(state, kind, data, image.len(), name.as_ptr(), 0, no.0, no.1).result()
        };
        add(SEVERAL)?;
        fails(add(MACHINE_CODE), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, &["machine code for sm_90"]);
        fails(add(b"hello world, this is text"), CUresult::CUDA_ERROR_INVALID_IMAGE, &["its header"]);
        sys::cuLinkComplete(state, &raw mut image, &raw mut size).result()?;
        assert_eq!(capability(load(image)?)?, 90);
        sys::cuLinkDestroy(state).result()?;
    }
    Ok(())
}

/// The buffers of both logs, full of other text.
struct Logs {
    info: [u8; 300],
    error: [u8; 300],
}

impl Logs {
    fn new() -> Self {
        Self { info: [b'i'; 300], error: [b'e'; 300] }
    }

    /// Loads a module with logs of this size. Returns the result, and the sizes and the time that come back.
    fn load(&mut self, text: &CStr, size: usize) -> (Result<(), DriverError>, [usize; 2], f32) {
        use CUjit_option::*;
        let mut options = [
            CU_JIT_INFO_LOG_BUFFER,
            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            CU_JIT_MAX_REGISTERS,
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            CU_JIT_ERROR_LOG_BUFFER,
            CU_JIT_WALL_TIME,
        ];
        let (info, error) = (self.info.as_mut_ptr().cast(), self.error.as_mut_ptr().cast());
        let size = std::ptr::without_provenance_mut::<c_void>(size);
        let mut values = [info, size, std::ptr::without_provenance_mut(32), size, error, size];
        let (mut module, count) = (null_mut(), options.len() as u32);
        let (options, into) = (options.as_mut_ptr(), values.as_mut_ptr());
        // SAFETY: there are as many values as options, and the buffers have at least this size.
        let loaded =
            unsafe { sys::cuModuleLoadDataEx(&raw mut module, text.as_ptr().cast(), count, options, into) };
        (loaded.result(), [values[1].addr(), values[3].addr()], f32::from_bits(values[5].addr() as u32))
    }
}

fn logs() -> anyhow::Result<()> {
    let _context = untracked(0);
    let ptx = c".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry f() { ret; }\n";
    let mut logs = Logs::new();
    let (loaded, sizes, time) = logs.load(ptx, 300);
    loaded?;
    assert_eq!((sizes, time, logs.info[0], logs.error[0]), ([0, 0], 0.0, 0, 0));
    for size in [300, 12, 1] {
        let mut logs = Logs::new();
        let (loaded, sizes, _) = logs.load(c"hello", size);
        fails(loaded, CUresult::CUDA_ERROR_INVALID_IMAGE, &["not PTX"]);
        assert_eq!((sizes[0], logs.info[0]), (0, 0));
        let written = CStr::from_bytes_until_nul(&logs.error)?.to_str()?;
        assert_eq!(written.len(), sizes[1]);
        assert!(size < 300 || written.contains("not PTX"), "{written}");
        assert!(size == 300 || written.len() == size - 1, "{written}");
        assert_eq!(logs.error[size..], [b'e'; 300][size..]);
    }
    // Without room, nothing is written.
    let mut logs = Logs::new();
    let (loaded, sizes, _) = logs.load(c"hello", 0);
    fails(loaded, CUresult::CUDA_ERROR_INVALID_IMAGE, &["not PTX"]);
    assert_eq!((sizes, logs.info[0], logs.error[0]), ([0, 0], b'i', b'e'));
    Ok(())
}
