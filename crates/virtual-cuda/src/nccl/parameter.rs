//! The bodies of the functions that read NCCL's parameters. None of them needs a GPU.

use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};

use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};
use virtual_gpu_nccl::log;
use virtual_gpu_nccl::parameter::{self, PARAMETERS, Parameter, Value};

use super::{give, invalid};
use crate::answer::keep;
use crate::pointer::{Out, Text};

/// `ncclParamHandle_t`: the parameter's number in [`PARAMETERS`], counted from 1.
pub type ParameterHandle = *mut c_void;

fn of(handle: ParameterHandle) -> NcclResult<&'static Parameter> {
    let at = (handle as usize).checked_sub(1);
    let known = at.and_then(|at| PARAMETERS.get(at));
    known.ok_or_else(|| invalid(format!("{handle:?} is not a handle of ncclParamBind")))
}

/// Returns a parameter's number in [`PARAMETERS`], counted from 1.
fn number_of(key: Text) -> NcclResult<usize> {
    let Some(key) = key.text() else { return Err(invalid("the key is null, or not UTF-8")) };
    let at = PARAMETERS.iter().position(|parameter| parameter.key == key);
    at.map(|at| at + 1).ok_or_else(|| {
        let keys = PARAMETERS.each_ref().map(|parameter| parameter.key).join(", ");
        invalid(format!("{key:?} is not a parameter; the parameters are {keys}"))
    })
}

/// Returns an error for a value that a function of another type reads.
fn mismatch(parameter: &Parameter, value: &Value) -> Error<NcclStatus> {
    invalid(format!(
        "{} has the type {} and can't be read as another type: use ncclParamGet or ncclParamGetParameter",
        parameter.key,
        value.type_name()
    ))
}

pub(crate) fn bind(to: Out<ParameterHandle>, key: Text) -> NcclResult<()> {
    give(to, number_of(key)? as ParameterHandle)
}

pub(crate) fn parameter_u32(handle: ParameterHandle, to: Out<u32>) -> NcclResult<()> {
    let parameter = of(handle)?;
    match parameter.value() {
        Value::LevelSet(bits) => give(to, bits),
        value => Err(mismatch(parameter, &value)),
    }
}

pub(crate) fn parameter_u64(handle: ParameterHandle, to: Out<c_ulonglong>) -> NcclResult<()> {
    let parameter = of(handle)?;
    match parameter.value() {
        Value::SubsystemSet(bits) => give(to, bits),
        value => Err(mismatch(parameter, &value)),
    }
}

/// Reads a number of a type that no parameter has.
pub(crate) fn parameter_number<T>(handle: ParameterHandle, _to: Out<T>) -> NcclResult<()> {
    let parameter = of(handle)?;
    Err(mismatch(parameter, &parameter.value()))
}

pub(crate) fn parameter_text(handle: ParameterHandle, to: Out<*const c_char>) -> NcclResult<()> {
    let parameter = of(handle)?;
    match parameter.value() {
        Value::Text(text) => give(to, keep(&text).as_ptr()),
        value => Err(mismatch(parameter, &value)),
    }
}

/// Copies a value as it is in memory: a string ends with a zero byte.
///
/// # Errors
/// Returns `InvalidArgument` if there is not enough room; the length is then 0.
pub(crate) fn parameter_bytes(
    handle: ParameterHandle,
    to: Out<u8>,
    room: c_int,
    len: Out<c_int>,
) -> NcclResult<()> {
    let parameter = of(handle)?;
    if to.is_null() || len.is_null() || room <= 0 {
        return Err(invalid(
            "ncclParamGet: pass a buffer with room for at least 1 byte, and a pointer to the length",
        ));
    }
    let bytes = parameter.value().bytes();
    if bytes.len() > room as usize {
        give(len, 0)?;
        let (key, needed) = (parameter.key, bytes.len());
        return Err(invalid(format!(
            "ncclParamGet: {key} has {needed} bytes, more than the {room} of the buffer"
        )));
    }
    to.give_all(&bytes).map_err(|error| invalid(error.message))?;
    give(len, bytes.len() as c_int)
}

/// Returns a value as a string and its length. If there is no such parameter, these are null and 0.
pub(crate) fn parameter_value(key: Text, to: Out<*const c_char>, len: Out<c_int>) -> NcclResult<()> {
    if to.is_null() || len.is_null() {
        return Err(invalid("ncclParamGetParameter: a result pointer is null"));
    }
    let found = number_of(key);
    let text = match &found {
        Ok(number) => Some(keep(&PARAMETERS[number - 1].value().to_string())),
        Err(_) => None,
    };
    give(to, text.map_or(std::ptr::null(), CStr::as_ptr))?;
    give(len, text.map_or(0, CStr::count_bytes) as c_int)?;
    found.map(drop)
}

/// Returns the keys of all parameters, in an array that lives as long as the thread. Callers only read it, although C
/// declares it without `const`.
pub(crate) fn parameter_keys(to: Out<*mut *const c_char>, len: Out<c_int>) -> NcclResult<()> {
    thread_local! {
        static KEYS: [*const c_char; PARAMETERS.len()] =
            PARAMETERS.each_ref().map(|parameter| keep(parameter.key).as_ptr());
    }
    if to.is_null() || len.is_null() {
        return Err(invalid("ncclParamGetAllParameterKeys: a result pointer is null"));
    }
    give(to, KEYS.with(|keys| keys.as_ptr().cast_mut()))?;
    give(len, PARAMETERS.len() as c_int)
}

/// Prints all parameters to the log.
pub(crate) fn dump_parameters() -> NcclResult<()> {
    log::print(&parameter::dump());
    Ok(())
}
