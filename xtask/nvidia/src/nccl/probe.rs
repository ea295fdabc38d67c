//! Calls of NCCL that need no GPU.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use anyhow::Context;
use libloading::{Library, Symbol};

use crate::probe::{print, text};

type Comm = *mut c_void;

/// `ncclUniqueId`
#[derive(Clone, Copy)]
#[repr(C)]
struct Id([u8; 128]);

/// The codes whose texts are read: all of NCCL's, and some that have no meaning.
pub(super) const CODES: std::ops::RangeInclusive<c_int> = -1..=10;

/// Returns a function of the library.
///
/// # Safety
/// The function has the type `F`.
unsafe fn function<'a, F>(library: &'a Library, name: &str) -> anyhow::Result<Symbol<'a, F>> {
    // SAFETY: the caller promises this.
    unsafe { library.get(name) }.with_context(|| name.to_owned())
}

/// Makes the calls, and prints what they return.
pub(crate) fn calls(library: &Library) -> anyhow::Result<()> {
    // SAFETY: these are the types in nccl.h.
    unsafe {
        texts(library)?;
        versions_and_ids(library)?;
        groups(library)?;
        wrong_communicators(library)?;
        newer_functions(library)?;
        ranks(library)?;
    }
    through_cudarc();
    Ok(())
}

/// # Safety
/// The library is an NCCL; the same for the functions below.
unsafe fn texts(library: &Library) -> anyhow::Result<()> {
    // SAFETY: the caller promises this.
    unsafe {
        let error_text =
            function::<unsafe extern "C" fn(c_int) -> *const c_char>(library, "ncclGetErrorString")?;
        for code in CODES {
            print(&format!("ncclGetErrorString({code})"), text(error_text(code)));
        }
    }
    Ok(())
}

unsafe fn versions_and_ids(library: &Library) -> anyhow::Result<()> {
    // SAFETY: the caller promises this.
    unsafe {
        let get_version = function::<unsafe extern "C" fn(*mut c_int) -> c_int>(library, "ncclGetVersion")?;
        let mut version = 0;
        print("ncclGetVersion", get_version(&mut version));
        print("version", version);
        print("ncclGetVersion(NULL)", get_version(null_mut()));
        let get_id = function::<unsafe extern "C" fn(*mut Id) -> c_int>(library, "ncclGetUniqueId")?;
        print("ncclGetUniqueId", get_id(&mut Id([0; 128])));
        print("ncclGetUniqueId(NULL)", get_id(null_mut()));
    }
    Ok(())
}

unsafe fn groups(library: &Library) -> anyhow::Result<()> {
    // SAFETY: the caller promises this.
    unsafe {
        let start = function::<unsafe extern "C" fn() -> c_int>(library, "ncclGroupStart")?;
        let end = function::<unsafe extern "C" fn() -> c_int>(library, "ncclGroupEnd")?;
        print("ncclGroupEnd without a start", end());
        print("ncclGroupStart", start());
        print("ncclGroupStart, nested", start());
        print("ncclGroupEnd, nested", end());
        print("ncclGroupEnd", end());
    }
    Ok(())
}

type Collective =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
type Transfer = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
type Gather = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, *mut c_void) -> c_int;
type Reduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, *mut c_void) -> c_int;

/// Passes the communicator NULL to each function that takes one.
unsafe fn wrong_communicators(library: &Library) -> anyhow::Result<()> {
    let (no, out) = (null::<c_void>(), null_mut::<c_void>());
    let mut value: c_int = 0;
    // SAFETY: the caller promises this.
    unsafe {
        for name in ["ncclCommDestroy", "ncclCommAbort", "ncclCommFinalize"] {
            let end = function::<unsafe extern "C" fn(Comm) -> c_int>(library, name)?;
            print(&format!("{name}(NULL)"), end(null_mut()));
        }
        for name in ["ncclCommCount", "ncclCommUserRank", "ncclCommCuDevice", "ncclCommGetAsyncError"] {
            let get = function::<unsafe extern "C" fn(Comm, *mut c_int) -> c_int>(library, name)?;
            print(&format!("{name}(NULL)"), get(null_mut(), &mut value));
        }
        for name in ["ncclAllReduce", "ncclBroadcast", "ncclReduceScatter"] {
            // ncclBroadcast has a root where the others have an operator.
            let call = function::<Collective>(library, name)?;
            print(&format!("{name}(NULL)"), call(no, out, 0, 7, 0, null_mut(), null_mut()));
        }
        let gather = function::<Gather>(library, "ncclAllGather")?;
        print("ncclAllGather(NULL)", gather(no, out, 0, 7, null_mut(), null_mut()));
        let reduce = function::<Reduce>(library, "ncclReduce")?;
        print("ncclReduce(NULL)", reduce(no, out, 0, 7, 0, 0, null_mut(), null_mut()));
        for name in ["ncclBcast", "ncclSend", "ncclRecv"] {
            let call = function::<Transfer>(library, name)?;
            print(&format!("{name}(NULL)"), call(out, 0, 7, 0, null_mut(), null_mut()));
        }
        let create = function::<unsafe extern "C" fn(*mut c_uint, *const c_void, c_int, c_int, Comm) -> c_int>(
            library,
            "ncclRedOpCreatePreMulSum",
        )?;
        print("ncclRedOpCreatePreMulSum(NULL)", create(&mut 0, (&raw const value).cast(), 7, 1, null_mut()));
        let destroy = function::<unsafe extern "C" fn(c_uint, Comm) -> c_int>(library, "ncclRedOpDestroy")?;
        print("ncclRedOpDestroy(NULL)", destroy(5, null_mut()));
    }
    Ok(())
}

/// Calls functions that older versions lack or implement differently: with the communicator NULL, and outside of a group.
unsafe fn newer_functions(library: &Library) -> anyhow::Result<()> {
    let mut version = 0;
    let (mut made, mut value) = (null_mut::<c_void>(), 0_u64);
    // SAFETY: the caller promises this.
    unsafe {
        function::<unsafe extern "C" fn(*mut c_int) -> c_int>(library, "ncclGetVersion")?(&mut version);
        if version < 23_000 {
            return Ok(());
        }
        let revoke = function::<unsafe extern "C" fn(Comm, c_int) -> c_int>(library, "ncclCommRevoke")?;
        print("2.30: ncclCommRevoke(NULL)", revoke(null_mut(), 0));
        let register = function::<RegisterWindow>(library, "ncclCommWindowRegister")?;
        print("2.30: ncclCommWindowRegister(NULL)", register(null_mut(), null(), 0, &mut made, 0));
        for name in ["ncclCommWindowDeregister", "ncclCommRegister"] {
            // Neither reads its other arguments first.
            let call = function::<RegisterWindow>(library, name)?;
            print(&format!("2.30: {name}(NULL)"), call(null_mut(), null(), 0, &mut made, 0));
        }
        let statistics =
            function::<unsafe extern "C" fn(Comm, c_int, *mut u64) -> c_int>(library, "ncclCommMemStats")?;
        print("2.30: ncclCommMemStats(NULL)", statistics(null_mut(), 0, &mut value));
        let simulate =
            function::<unsafe extern "C" fn(*mut c_void) -> c_int>(library, "ncclGroupSimulateEnd")?;
        print("2.30: ncclGroupSimulateEnd outside of a group", simulate(null_mut()));
        let start = function::<unsafe extern "C" fn() -> c_int>(library, "ncclGroupStart")?;
        let mut info = [0_u32; 6];
        info[0] = 24;
        start();
        print("2.30: ncclGroupSimulateEnd, not initialized", simulate(info.as_mut_ptr().cast()));
        (info[2], info[3]) = (0x7468_5283, version as u32);
        start();
        print("2.30: ncclGroupSimulateEnd, no call", simulate(info.as_mut_ptr().cast()));
    }
    Ok(())
}

type RegisterWindow = unsafe extern "C" fn(Comm, *const c_void, usize, *mut *mut c_void, c_int) -> c_int;

/// Creates communicators, which fails for want of a GPU, or before that because of an argument.
unsafe fn ranks(library: &Library) -> anyhow::Result<()> {
    type InitRank = unsafe extern "C" fn(*mut Comm, c_int, Id, c_int) -> c_int;
    type InitRankConfig = unsafe extern "C" fn(*mut Comm, c_int, Id, c_int, *const c_void) -> c_int;
    type InitAll = unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int;
    let (mut id, mut comm) = (Id([0; 128]), null_mut());
    // SAFETY: the caller promises this.
    unsafe {
        let get_id = function::<unsafe extern "C" fn(*mut Id) -> c_int>(library, "ncclGetUniqueId")?;
        get_id(&mut id);
        let init = function::<InitRank>(library, "ncclCommInitRank")?;
        print("ncclCommInitRank", init(&mut comm, 1, id, 0));
        print("ncclCommInitRank(NULL)", init(null_mut(), 1, id, 0));
        print("ncclCommInitRank, no ranks", init(&mut comm, 0, id, 0));
        print("ncclCommInitRank, rank 1 of 1", init(&mut comm, 1, id, 1));
        print("ncclCommInitRank, rank -1", init(&mut comm, 1, id, -1));
        let init = function::<InitRankConfig>(library, "ncclCommInitRankConfig")?;
        print("ncclCommInitRankConfig, no config", init(&mut comm, 1, id, 0, null()));
        let init = function::<InitAll>(library, "ncclCommInitAll")?;
        print("ncclCommInitAll", init(&mut comm, 1, null()));
        print("ncclCommInitAll, device 0", init(&mut comm, 1, &0));
        print("ncclCommInitAll(NULL)", init(null_mut(), 1, null()));
        print("ncclCommInitAll, -1 devices", init(&mut comm, -1, null()));
        let last = function::<unsafe extern "C" fn(Comm) -> *const c_char>(library, "ncclGetLastError")?;
        print("ncclGetLastError is a text", !last(null_mut()).is_null());
    }
    Ok(())
}

/// Makes calls as the course makes them: cudarc finds the library by the name `libnccl.so`.
fn through_cudarc() {
    use cudarc::nccl::result;
    // SAFETY: NCCL's constructors have no preconditions.
    print("cudarc finds NCCL", unsafe { cudarc::nccl::sys::is_culib_present() });
    let version = result::get_nccl_version();
    print(
        "cudarc's version",
        version.map_or_else(|error| format!("{error:?}"), |version| version.to_string()),
    );
    print("cudarc's id", result::get_uniqueid().is_ok());
}
