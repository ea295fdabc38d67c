//! Memory that NCCL allocates, registered buffers, and communicators from several ids.

use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUdeviceptr, cuMemcpyDtoH_v2, cuMemcpyHtoD_v2};
use cudarc::nccl::result::get_uniqueid;
use cudarc::nccl::sys::{self, ncclResult_t, ncclUniqueId};
use lab::Check;

use crate::nccl::stream;
use crate::raw::{Answer, Function, Rank, address, answer, floats, raw_ranks};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl_memory::a_collective_uses_memory_that_nccl_allocated", allocated),
        Check::new("nccl_memory::a_registered_buffer_has_a_handle_until_it_is_deregistered", registered),
        Check::new("nccl_memory::several_ids_make_one_communicator", several_ids),
        Check::new("nccl_memory::a_profiler_finds_each_function_by_its_second_name", second_names),
    ]
}

fn allocate(bytes: usize) -> CUdeviceptr {
    let mut address = null_mut();
    // SAFETY: the pointer is writable.
    answer(unsafe { sys::ncclMemAlloc(&mut address, bytes) }).unwrap();
    address as CUdeviceptr
}

fn free(address: CUdeviceptr) -> Answer {
    // SAFETY: the library checks the address.
    answer(unsafe { sys::ncclMemFree(address as *mut _) })
}

fn allocated() -> anyhow::Result<()> {
    raw_ranks(0, 2, |rank: Rank| {
        let buffer = allocate(12);
        let own = [1.0_f32, 2.0, rank.rank as f32];
        let mut sum = [0.0_f32; 3];
        // SAFETY: both host arrays have 12 bytes.
        unsafe { cuMemcpyHtoD_v2(buffer, own.as_ptr().cast(), 12).result().unwrap() };
        rank.call(Function::AllReduce, buffer, buffer, floats(3)).unwrap();
        rank.stream.synchronize().unwrap();
        // SAFETY: as above.
        unsafe { cuMemcpyDtoH_v2(sum.as_mut_ptr().cast(), buffer, 12).result().unwrap() };
        assert_eq!(sum, [2.0, 4.0, 1.0]);
        free(buffer).unwrap();
        assert!(free(buffer).is_err(), "it is freed already");
    });
    // As `cudaMalloc` and `cudaFree`, which NCCL calls then.
    assert_eq!(allocate(0), 0);
    free(0).unwrap();
    // SAFETY: the library checks the pointer.
    let (code, text) = answer(unsafe { sys::ncclMemAlloc(null_mut(), 4) }).unwrap_err();
    assert_eq!((code, text.contains("null")), (ncclResult_t::ncclInvalidArgument, true), "{text}");
    Ok(())
}

fn register(rank: &Rank, address: u64, bytes: usize) -> Result<usize, (ncclResult_t, String)> {
    let mut handle = null_mut();
    // SAFETY: the pointer is writable, and the library checks the buffer.
    let done = unsafe { sys::ncclCommRegister(rank.comm, address as *mut _, bytes, &mut handle) };
    answer(done).map(|()| handle as usize)
}

fn deregister(rank: &Rank, handle: usize) -> Answer {
    // SAFETY: the library checks the handle.
    answer(unsafe { sys::ncclCommDeregister(rank.comm, handle as *mut _) })
}

fn registered() -> anyhow::Result<()> {
    raw_ranks(0, 2, |rank: Rank| {
        let buffer = allocate(64);
        let handle = register(&rank, buffer, 64).unwrap();
        assert_ne!(handle, 0);
        assert_ne!(register(&rank, buffer + 4, 8).unwrap(), handle);
        let (code, text) = register(&rank, buffer, 65).unwrap_err();
        assert_eq!(code, ncclResult_t::ncclInvalidArgument);
        assert!(text.contains("65 bytes") && text.contains("are not in one buffer"), "{text}");
        deregister(&rank, 0).unwrap();
        deregister(&rank, handle).unwrap();
        let (code, text) = deregister(&rank, handle).unwrap_err();
        assert_eq!(code, ncclResult_t::ncclInvalidUsage);
        assert!(text.contains("was it deregistered before?"), "{text}");
        free(buffer).unwrap();
    });
    Ok(())
}

fn several_ids() -> anyhow::Result<()> {
    let mut ids = [get_uniqueid().unwrap(), get_uniqueid().unwrap()];
    let join = |own: &Arc<CudaStream>, rank: i32, mut ids: Vec<ncclUniqueId>| {
        own.context().bind_to_thread().unwrap();
        let mut comm = null_mut();
        let count = ids.len() as i32;
        // SAFETY: both pointers are valid, and there is no configuration.
        answer(unsafe {
            sys::ncclCommInitRankScalable(&mut comm, 3, rank, count, ids.as_mut_ptr(), null_mut())
        })
        .map(|()| Rank::of(comm, own.clone()))
    };
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let rank = join(&stream(rank as usize), rank, ids.to_vec()).unwrap();
                let buffer = rank.stream.clone_htod(&[1.0_f32]).unwrap();
                let at = address(&buffer);
                rank.call(Function::AllReduce, at, at, floats(1)).unwrap();
                assert_eq!(rank.stream.clone_dtoh(&buffer).unwrap(), [3.0]);
            });
        }
    });
    let own = stream(0);
    let refused = |ids: Vec<ncclUniqueId>, words: &str| {
        let (code, text) = join(&own, 0, ids).map(drop).unwrap_err();
        assert_eq!((code, text.contains(words)), (ncclResult_t::ncclInvalidArgument, true), "{text}");
    };
    refused(Vec::new(), "0 ids for 3 ranks");
    refused(vec![ids[0]; 4], "4 ids for 3 ranks");
    ids[1].internal = [0; 128];
    refused(ids.to_vec(), "id");
    Ok(())
}

fn second_names() -> anyhow::Result<()> {
    // SAFETY: the names are C strings, and `libnccl.so` is loaded already.
    let library = unsafe { libc::dlopen(c"libnccl.so".as_ptr(), libc::RTLD_LAZY) };
    assert!(!library.is_null());
    for name in [c"pncclAllReduce", c"pncclCommInitRank", c"pncclGroupEnd", c"pncclMemAlloc"] {
        // SAFETY: the library is open, and the name is a C string.
        assert!(!unsafe { libc::dlsym(library, name.as_ptr()) }.is_null(), "{name:?}");
    }
    // SAFETY: as above; this is the type of `ncclGetVersion`.
    let version: unsafe extern "C" fn(*mut i32) -> u32 =
        unsafe { std::mem::transmute(libc::dlsym(library, c"pncclGetVersion".as_ptr())) };
    let mut number = 0;
    // SAFETY: the number is writable.
    assert_eq!((unsafe { version(&mut number) }, number > 22_000), (0, true));
    Ok(())
}
