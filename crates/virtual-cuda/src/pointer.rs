//! Pointers as C callers give them. Each type says what the caller promises; only the exported functions' callers
//! make values of them.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;

use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

fn is_null(what: &str) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidValue, format!("{what} is null"))
}

/// Where a result goes: null, or writable for as many values as the function writes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> fmt::Debug for Out<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Copy> Out<T> {
    /// Where a result goes that is written after the call: the address of an earlier one, which the caller keeps alive.
    pub(crate) fn at(address: usize) -> Self {
        Self(address as *mut T)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address that it points to.
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    /// Writes the result.
    pub(crate) fn give(self, value: T) -> CudaResult<()> {
        self.give_all(&[value])
    }

    /// Writes the result where a null pointer means that it is not wanted.
    pub(crate) fn give_if_wanted(self, value: T) {
        if !self.is_null() {
            let _ = self.give(value);
        }
    }

    /// Writes an array of results.
    pub(crate) fn give_all(self, values: &[T]) -> CudaResult<()> {
        if values.is_empty() {
            return Ok(());
        }
        if self.is_null() {
            return Err(is_null("the pointer for the result"));
        }
        // SAFETY: not null, and so writable for as many values as the function gives; nothing else refers to `values`.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }
}

/// A C string, or null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// The string's bytes, for as long as the call lasts.
    pub(crate) fn bytes<'a>(self) -> Option<&'a [u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, and so a C string, which outlives the call.
        Some(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The string, where it is UTF-8.
    pub(crate) fn text<'a>(self) -> Option<&'a str> {
        str::from_utf8(self.bytes()?).ok()
    }
}

/// Host memory to be read: null, or as many values as the function is given.
#[derive(Debug)]
#[repr(transparent)]
pub struct Source<T>(*const T);

impl<T> Clone for Source<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Source<T> {}

impl<T: Copy> Source<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address that it points to.
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    /// No host memory.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null())
    }

    /// Its one value; `what` names it where the pointer is null.
    pub(crate) fn value(self, what: &str) -> CudaResult<T> {
        if self.is_null() {
            return Err(is_null(what));
        }
        // SAFETY: not null, and so readable.
        Ok(unsafe { self.0.read() })
    }

    /// Its values.
    pub(crate) fn values(self, count: usize) -> CudaResult<Vec<T>> {
        match count {
            0 => Ok(Vec::new()),
            _ if self.is_null() => Err(is_null("the host pointer")),
            // SAFETY: not null, and so readable for as many values.
            _ => Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec()),
        }
    }
}

/// Bytes to be read whose number depends on what is in them, or on other arguments: null, or as many as it is asked for.
/// They live as long as the call.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Bytes(*const u8);

impl Bytes {
    /// The address that it points to.
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    /// The first `count` of them.
    pub(crate) fn read<'a>(self, count: usize) -> Option<&'a [u8]> {
        // SAFETY: not null, and so readable for as many bytes as the function's description says.
        (!self.0.is_null()).then(|| unsafe { std::slice::from_raw_parts(self.0, count) })
    }
}

/// A kernel's arguments: null, or a pointer to the value of each parameter.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Arguments(*const *const c_void);

impl Arguments {
    /// The value of a parameter of `size` bytes, for as long as the call lasts.
    pub(crate) fn value<'a>(self, index: usize, size: usize) -> Option<&'a [u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, and so an array with a pointer for each parameter.
        let value = unsafe { *self.0.add(index) }.cast::<u8>();
        // SAFETY: where it is not null, it leads to a value of the parameter's size.
        (!value.is_null()).then(|| unsafe { std::slice::from_raw_parts(value, size) })
    }
}
