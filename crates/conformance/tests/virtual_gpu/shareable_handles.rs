//! Memory and memory pools that processes share through file descriptors.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

use anyhow::ensure;
use cudarc::driver::sys::{
    self, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType as Type, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUmemPoolProps,
    CUmemPoolPtrExportData, CUmemoryPool, CUresult,
};
use cudarc::driver::{DriverError, PushKernelArg, result};
use lab::Check;

use crate::device::{shape, untracked};
use crate::fails;
use crate::shared_between_processes::{kernel, read, write};
use crate::two_processes::{self, Link};

use CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("shareable::memory_is_mapped_in_both_processes", memory),
        Check::new("shareable::memory_outlives_the_process_that_created_it", killed),
        Check::new("shareable::memory_is_mapped_twice_in_one_process", one_process),
        Check::new("shareable::memory_of_another_gpu_is_accessed_through_a_link", other_gpu),
        Check::new("shareable::neighbors_keep_their_own_buffers", neighbors),
        Check::new("shareable::a_pool_s_memory_is_opened_in_another_process", pool),
        Check::new("shareable::bad_arguments_are_refused", bad_arguments),
    ]
}

const FD: Type = Type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const SIZE: usize = 2 << 20;

fn on(gpu: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu }
}

fn create(gpu: i32, kind: Type) -> Result<CUmemGenericAllocationHandle, DriverError> {
    // SAFETY: zero is a valid value for every field.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = kind;
    properties.location = on(gpu);
    let mut handle = 0;
    // SAFETY: both pointers are valid.
    unsafe { sys::cuMemCreate(&raw mut handle, SIZE, &raw const properties, 0) }.result().map(|()| handle)
}

fn export(handle: CUmemGenericAllocationHandle) -> Result<OwnedFd, DriverError> {
    let mut descriptor = -1_i32;
    // SAFETY: the result has room for a descriptor, which belongs to this program.
    unsafe {
        sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, FD, 0).result()?;
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

fn import(file: &OwnedFd) -> Result<CUmemGenericAllocationHandle, DriverError> {
    let mut handle = 0;
    let descriptor = file.as_raw_fd() as usize as *mut std::ffi::c_void;
    // SAFETY: the result is writable.
    unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, descriptor, FD) }.result().map(|()| handle)
}

/// Maps memory, and lets a GPU access it.
fn map(handle: CUmemGenericAllocationHandle, gpu: i32) -> Result<u64, DriverError> {
    let mut address = 0;
    // SAFETY: the result is writable.
    unsafe { sys::cuMemAddressReserve(&raw mut address, SIZE, 0, 0, 0) }.result()?;
    map_at(address, handle, gpu).map(|()| address)
}

fn map_at(address: u64, handle: CUmemGenericAllocationHandle, gpu: i32) -> Result<(), DriverError> {
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = CUmemAccessDesc { location: on(gpu), flags };
    // SAFETY: the description is valid.
    unsafe {
        sys::cuMemMap(address, SIZE, 0, handle, 0).result()?;
        sys::cuMemSetAccess(address, SIZE, &raw const access, 1).result()
    }
}

fn memory() -> anyhow::Result<()> {
    let child = |mut link: Link| {
        let _context = untracked(0);
        let handle = create(0, FD)?;
        let address = map(handle, 0)?;
        write(address, &[5; 100])?;
        link.send_file(export(handle)?.as_raw_fd())?;
        link.meet()?;
        ensure!(read(address, 102)?[98..] == [5, 5, 6, 7]);
        Ok(())
    };
    two_processes::run(child, |mut link| {
        let _context = untracked(0);
        let handle = import(&link.receive_file()?)?;
        let address = map(handle, 0)?;
        assert_eq!(read(address, 100)?, [5; 100]);
        write(address + 100, &[6, 7])?;
        link.meet()?;
        let words = ["reads bytes that nothing wrote"];
        fails(read(address, 103), CUresult::CUDA_ERROR_LAUNCH_FAILED, &words);
        Ok(())
    })
}

fn killed() -> anyhow::Result<()> {
    let (child, mut link) = two_processes::start(|mut link| {
        let _context = untracked(0);
        let handle = create(0, FD)?;
        write(map(handle, 0)?, &[5; 100])?;
        link.send_file(export(handle)?.as_raw_fd())?;
        link.receive::<1>().map(drop)
    });
    let file = link.receive_file()?;
    child.kill();
    let _context = untracked(0);
    let handle = import(&file)?;
    // The memory can be exported again.
    let again = import(&export(handle)?)?;
    assert_eq!(read(map(handle, 0)?, 100)?, [5; 100]);
    assert_eq!(read(map(again, 0)?, 100)?, [5; 100]);
    Ok(())
}

fn one_process() -> anyhow::Result<()> {
    let _context = untracked(0);
    let handle = create(0, FD)?;
    let file = export(handle)?;
    let other = import(&file)?;
    let (first, second) = (map(handle, 0)?, map(other, 0)?);
    write(first, &[1, 2])?;
    write(second + 2, &[3, 4])?;
    assert_eq!((read(first, 4)?, read(second, 4)?), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));
    // SAFETY: both are mapped and alive.
    unsafe {
        sys::cuMemUnmap(first, SIZE).result()?;
        sys::cuMemRelease(handle).result()?;
    }
    assert_eq!(read(second, 4)?, [1, 2, 3, 4]);
    Ok(())
}

fn other_gpu() -> anyhow::Result<()> {
    let child = |mut link: Link| {
        let _context = untracked(1);
        let handle = create(1, FD)?;
        write(map(handle, 1)?, &[0; 4])?;
        link.send_file(export(handle)?.as_raw_fd())?;
        link.meet()
    };
    two_processes::run(child, |mut link| {
        let context = untracked(0);
        let address = map(import(&link.receive_file()?)?, 0)?;
        let (stream, add) = kernel(&context, "add")?;
        // SAFETY: the memory has room for a number.
        unsafe { stream.launch_builder(&add).arg(&address).arg(&10_i32).launch(shape(1, 32))? };
        stream.synchronize()?;
        assert_eq!(read(address, 4)?, 320_i32.to_le_bytes());
        link.meet()
    })
}

fn neighbors() -> anyhow::Result<()> {
    let _context = untracked(0);
    let mut address = 0;
    // SAFETY: the result is writable.
    unsafe { sys::cuMemAddressReserve(&raw mut address, 3 * SIZE, 0, 0, 0) }.result()?;
    let none = Type::CU_MEM_HANDLE_TYPE_NONE;
    let handles = [create(0, none)?, create(0, FD)?, create(0, none)?];
    for (place, handle) in handles.into_iter().enumerate().rev() {
        let at = address + (place * SIZE) as u64;
        map_at(at, handle, 0)?;
        write(at, &[place as u8; SIZE])?;
    }
    for place in [1, 0, 2] {
        let at = address + (place * SIZE) as u64;
        assert_eq!(read(at, SIZE)?, [place as u8; SIZE]);
        // SAFETY: the memory is mapped there.
        unsafe { sys::cuMemUnmap(at, SIZE) }.result()?;
    }
    Ok(())
}

fn new_pool(kind: Type) -> Result<CUmemoryPool, DriverError> {
    // SAFETY: zero is a valid value for every field.
    let mut properties: CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = kind;
    properties.location = on(0);
    let mut pool = null_mut();
    // SAFETY: both pointers are valid.
    unsafe { sys::cuMemPoolCreate(&raw mut pool, &raw const properties) }.result().map(|()| pool)
}

fn allocate(pool: CUmemoryPool) -> Result<u64, DriverError> {
    let mut address = 0;
    // SAFETY: the result is writable.
    unsafe { sys::cuMemAllocFromPoolAsync(&raw mut address, 4096, pool, null_mut()) }.result()?;
    Ok(address)
}

fn export_pool(pool: CUmemoryPool) -> Result<OwnedFd, DriverError> {
    let mut descriptor = -1_i32;
    // SAFETY: the result has room for a descriptor, which belongs to this program.
    unsafe {
        sys::cuMemPoolExportToShareableHandle((&raw mut descriptor).cast(), pool, FD, 0).result()?;
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

fn import_pool(file: &OwnedFd) -> Result<CUmemoryPool, DriverError> {
    let mut pool = null_mut();
    let descriptor = file.as_raw_fd() as usize as *mut std::ffi::c_void;
    // SAFETY: the result is writable.
    unsafe { sys::cuMemPoolImportFromShareableHandle(&raw mut pool, descriptor, FD, 0) }.result()?;
    Ok(pool)
}

fn export_pointer(address: u64) -> Result<[u8; 64], DriverError> {
    let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
    // SAFETY: the result is writable.
    unsafe { sys::cuMemPoolExportPointer(&raw mut data, address) }.result().map(|()| data.reserved)
}

fn import_pointer(pool: CUmemoryPool, reserved: [u8; 64]) -> Result<u64, DriverError> {
    let (mut address, mut data) = (0, CUmemPoolPtrExportData { reserved });
    // SAFETY: both pointers are valid.
    unsafe { sys::cuMemPoolImportPointer(&raw mut address, pool, &raw mut data) }.result().map(|()| address)
}

fn pool() -> anyhow::Result<()> {
    let child = |mut link: Link| {
        let _context = untracked(0);
        let pool = new_pool(FD)?;
        let address = allocate(pool)?;
        write(address, &[5; 4096])?;
        link.send_file(export_pool(pool)?.as_raw_fd())?;
        link.send(&export_pointer(address)?)?;
        link.meet()?;
        ensure!(read(address, 2)? == [6, 5]);
        // SAFETY: nothing uses the memory anymore.
        Ok(unsafe { result::free_sync(address) }?)
    };
    two_processes::run(child, |mut link| {
        let _context = untracked(0);
        let pool = import_pool(&link.receive_file()?)?;
        let data = link.receive::<64>()?;
        let address = import_pointer(pool, data)?;
        assert_eq!(read(address, 4096)?, [5; 4096]);
        write(address, &[6])?;
        fails(allocate(pool), CUDA_ERROR_INVALID_VALUE, &["a memory pool of another process"]);
        let other = import_pool(&export_pool(new_pool(FD)?)?)?;
        fails(import_pointer(other, data), CUDA_ERROR_INVALID_VALUE, &["the memory is from another pool"]);
        // SAFETY: nothing uses the memory anymore.
        unsafe { result::free_async(address, null_mut()) }?;
        link.meet()
    })
}

fn bad_arguments() -> anyhow::Result<()> {
    let _context = untracked(0);
    let invalid = CUDA_ERROR_INVALID_VALUE;
    let plain = create(0, Type::CU_MEM_HANDLE_TYPE_NONE)?;
    fails(export(plain), invalid, &["was not created with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"]);
    let fabric = Type::CU_MEM_HANDLE_TYPE_FABRIC;
    fails(create(0, fabric), CUDA_ERROR_NOT_SUPPORTED, &["handles of type 0x8"]);
    let other = OwnedFd::from(std::fs::File::open("/proc/self/stat")?);
    fails(import(&other), invalid, &["is not a file descriptor of memory from cuMemCreate"]);
    fails(import_pool(&other), invalid, &["is not a file descriptor of a memory pool"]);
    let private = new_pool(Type::CU_MEM_HANDLE_TYPE_NONE)?;
    fails(export_pool(private), invalid, &["was not created with"]);
    fails(export_pointer(allocate(private)?), invalid, &["was not created with"]);
    let shared = create(0, FD)?;
    fails(import_pool(&export(shared)?), invalid, &["is not a file descriptor of a memory pool"]);
    let mut handle = 0;
    // SAFETY: the result is writable, and the driver checks the descriptor.
    let imported = unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, 9999 as *mut _, FD) };
    fails(imported.result(), invalid, &["file descriptor 9999"]);
    Ok(())
}
