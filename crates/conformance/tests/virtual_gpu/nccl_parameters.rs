//! NCCL's parameters. The expected values are those of libnccl 2.30.7.

use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

use cudarc::nccl::sys;
use lab::Check;

use crate::contains;
use crate::nccl::last_error;

use sys::ncclResult_t::{ncclInvalidArgument, ncclSuccess};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl_parameters::as_text", as_text),
        Check::new("nccl_parameters::with_their_types", typed),
        Check::new("nccl_parameters::all_keys", keys),
        Check::new("nccl_parameters::in_the_log", dumped),
        Check::new("nccl_parameters::bad_arguments_are_refused", refused),
    ]
}

fn set(variable: &str, value: &str) {
    // SAFETY: no other thread is running yet.
    unsafe { std::env::set_var(variable, value) };
}

fn value(key: &str) -> Option<String> {
    let (key, mut text, mut len) = (CString::new(key).unwrap(), null(), -1);
    // SAFETY: the results are writable.
    let result = unsafe { sys::ncclParamGetParameter(key.as_ptr(), &raw mut text, &raw mut len) };
    assert_eq!(result == ncclSuccess, !text.is_null());
    // SAFETY: it is null or a string that is valid until the next call.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned());
    assert_eq!(len as usize, text.as_ref().map_or(0, String::len));
    text
}

fn as_text() -> anyhow::Result<()> {
    assert_eq!(value("NCCL_DEBUG").as_deref(), Some("<unknown>"));
    assert_eq!(value("NCCL_DEBUG_TIMESTAMP_FORMAT").as_deref(), Some("[%F %T] "));
    assert_eq!(value("NCCL_DEBUG_SUBSYS").as_deref(), Some("INIT,ENV,BOOTSTRAP"));
    assert_eq!(value("NCCL_SET_THREAD_NAME").as_deref(), Some("FALSE"));
    // Only this one keeps the value that it had when it was first read.
    for (variable, new) in
        [("NCCL_DEBUG", "warn"), ("NCCL_DEBUG_SUBSYS", "^coll"), ("NCCL_SET_THREAD_NAME", "1")]
    {
        set(variable, new);
    }
    assert_eq!(value("NCCL_DEBUG").as_deref(), Some("WARN"));
    assert!(value("NCCL_DEBUG_SUBSYS").unwrap().starts_with("INIT,P2P,SHM,"));
    assert_eq!(value("NCCL_SET_THREAD_NAME").as_deref(), Some("FALSE"));
    assert_eq!(value("NCCL_ALGO"), None);
    Ok(())
}

fn bind(key: &str) -> *mut sys::ncclParamHandle_t {
    let (key, mut handle) = (CString::new(key).unwrap(), null_mut());
    // SAFETY: the result is writable.
    assert_eq!(unsafe { sys::ncclParamBind(&raw mut handle, key.as_ptr()) }, ncclSuccess);
    handle
}

fn typed() -> anyhow::Result<()> {
    set("NCCL_DEBUG_FILE", "/dev/null");
    let (mut levels, mut bits, mut small, mut text) = (0, 0, 0, null());
    let (mut bytes, mut len) = ([0xee_u8; 16], -7);
    // SAFETY: the results are writable, and have the types that the functions write.
    unsafe {
        let set = bind("NCCL_DEBUG_TIMESTAMP_LEVELS");
        assert_eq!((sys::ncclParamGetU32(set, &raw mut levels), levels), (ncclSuccess, 4));
        assert_eq!(sys::ncclParamGetU8(set, &raw mut small), ncclInvalidArgument);
        let subsystems = bind("NCCL_DEBUG_SUBSYS");
        assert_eq!((sys::ncclParamGetU64(subsystems, &raw mut bits), bits), (ncclSuccess, 0x1081));
        assert_eq!(sys::ncclParamGetU32(subsystems, &raw mut levels), ncclInvalidArgument);
        contains(&last_error(), &["NCCL_DEBUG_SUBSYS has the type uint64_t", "ncclParamGetParameter"]);
        let file = bind("NCCL_DEBUG_FILE");
        assert_eq!(sys::ncclParamGetStr(file, &raw mut text), ncclSuccess);
        assert_eq!(CStr::from_ptr(text), c"/dev/null");
        assert_eq!(sys::ncclParamGetStr(subsystems, &raw mut text), ncclInvalidArgument);
        let to = bytes.as_mut_ptr().cast();
        assert_eq!((sys::ncclParamGet(file, to, 16, &raw mut len), len), (ncclSuccess, 10));
        assert_eq!(&bytes[..11], b"/dev/null\0\xee");
        assert_eq!((sys::ncclParamGet(file, to, 9, &raw mut len), len), (ncclInvalidArgument, 0));
        contains(&last_error(), &["NCCL_DEBUG_FILE has 10 bytes, more than the 9 of the buffer"]);
    }
    Ok(())
}

fn keys() -> anyhow::Result<()> {
    let (mut table, mut len) = (null_mut(), 0);
    // SAFETY: the results are writable, and the table has `len` strings.
    let keys: Vec<_> = unsafe {
        assert_eq!(sys::ncclParamGetAllParameterKeys(&raw mut table, &raw mut len), ncclSuccess);
        (0..len as usize).map(|at| CStr::from_ptr(*table.add(at)).to_str().unwrap()).collect()
    };
    assert_eq!(keys.len(), 6);
    assert!(keys.contains(&"NCCL_DEBUG") && keys.iter().all(|key| value(key).is_some()));
    Ok(())
}

fn dumped() -> anyhow::Result<()> {
    let file = std::env::temp_dir().join(format!("nccl_parameters_{}", std::process::id()));
    set("NCCL_DEBUG_FILE", file.to_str().unwrap());
    set("NCCL_DEBUG", "WARN");
    // SAFETY: the function has no preconditions.
    unsafe { sys::ncclParamDumpAll() };
    let text = std::fs::read_to_string(&file)?;
    std::fs::remove_file(&file)?;
    contains(
        &text,
        &["NCCL_DEBUG (ncclDebugLogLevel)", "value: WARN", "default: <unknown>", "NCCL_DEBUG_SUBSYS"],
    );
    Ok(())
}

fn refused() -> anyhow::Result<()> {
    let (mut handle, mut text, mut len, mut number) = (null_mut(), null(), 0, 0);
    // SAFETY: each pointer is null or writable.
    unsafe {
        for (to, key) in [(null_mut(), c"NCCL_DEBUG".as_ptr()), (&raw mut handle, null())] {
            assert_eq!(sys::ncclParamBind(to, key), ncclInvalidArgument);
        }
        assert_eq!(sys::ncclParamBind(&raw mut handle, c"NCCL_ALGO".as_ptr()), ncclInvalidArgument);
        contains(&last_error(), &["\"NCCL_ALGO\" is not a parameter", "NCCL_DEBUG_FILE"]);
        assert_eq!(sys::ncclParamGetI32(null_mut(), &raw mut number), ncclInvalidArgument);
        contains(&last_error(), &["not a handle of ncclParamBind"]);
        let key = c"NCCL_DEBUG".as_ptr();
        assert_eq!(sys::ncclParamGetParameter(key, null_mut(), &raw mut len), ncclInvalidArgument);
        assert_eq!(sys::ncclParamGetParameter(key, &raw mut text, null_mut()), ncclInvalidArgument);
        assert_eq!(sys::ncclParamGetAllParameterKeys(null_mut(), &raw mut len), ncclInvalidArgument);
        let mut byte = 0_u8;
        let to = (&raw mut byte).cast();
        assert_eq!(sys::ncclParamGet(bind("NCCL_DEBUG"), to, 0, &raw mut len), ncclInvalidArgument);
    }
    Ok(())
}
