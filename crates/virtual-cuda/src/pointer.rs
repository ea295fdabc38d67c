//! Pointers passed by C callers. Each type documents what the caller guarantees; only callers of the exported functions
//! create values of these types.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::{fmt, io};

use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

fn is_null(what: &str) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidValue, format!("{what} is null"))
}

/// A pointer for results: null, or writable for as many values as the function writes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> fmt::Debug for Out<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Copy> Out<T> {
    /// Returns a pointer for a result that is written after the call, from the address of an earlier pointer that the
    /// caller keeps alive.
    pub(crate) fn at(address: usize) -> Self {
        Self(address as *mut T)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Checks that the pointer is not null. `what` names it.
    ///
    /// # Errors
    /// Returns `InvalidValue` if it is null.
    pub(crate) fn check(self, what: &str) -> CudaResult<()> {
        if self.is_null() { Err(is_null(what)) } else { Ok(()) }
    }

    /// Returns the address that the pointer holds.
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    /// Writes the result.
    pub(crate) fn give(self, value: T) -> CudaResult<()> {
        self.give_all(&[value])
    }

    /// Writes the result, unless the pointer is null because the caller does not need the result.
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
            return Err(is_null("the result pointer"));
        }
        // SAFETY: the pointer is not null, so it is writable for as many values as the function writes; nothing else
        // refers to `values`.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }
}

/// An array of pointers for results: null, or as many pointers as the function takes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Outs(*const Out<u8>);

impl Outs {
    /// Returns the pointer with this index.
    pub(crate) fn at(self, index: usize) -> CudaResult<Out<u8>> {
        if self.0.is_null() {
            return Err(is_null("the array of result pointers"));
        }
        // SAFETY: the array is not null, so it has as many pointers as the function takes.
        Ok(unsafe { *self.0.add(index) })
    }
}

/// A C string, or null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// Returns the string's bytes, which live as long as the call.
    pub(crate) fn bytes<'a>(self) -> Option<&'a [u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the pointer is not null, so it is a C string, which outlives the call.
        Some(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// Returns the string if it is UTF-8.
    pub(crate) fn text<'a>(self) -> Option<&'a str> {
        str::from_utf8(self.bytes()?).ok()
    }
}

/// Host memory to read: null, or as many values as the function takes.
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

    /// Returns the address that the pointer holds.
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    /// Returns a pointer from an address that the caller keeps alive.
    pub(crate) fn at(address: usize) -> Self {
        Self(address as *const T)
    }

    /// Returns a null pointer.
    pub(crate) fn null() -> Self {
        Self(std::ptr::null())
    }

    /// Reads a single value; `what` names it in the error for a null pointer.
    pub(crate) fn value(self, what: &str) -> CudaResult<T> {
        if self.is_null() {
            return Err(is_null(what));
        }
        // SAFETY: the pointer is not null, so it is readable.
        Ok(unsafe { self.0.read() })
    }

    /// Reads `count` values.
    pub(crate) fn values(self, count: usize) -> CudaResult<Vec<T>> {
        match count {
            0 => Ok(Vec::new()),
            _ if self.is_null() => Err(is_null("the host pointer")),
            // SAFETY: the pointer is not null, so it is readable for this many values.
            _ => Ok(unsafe { std::slice::from_raw_parts(self.0, count) }.to_vec()),
        }
    }
}

/// Bytes to read, whose number depends on their content or on other arguments: null, or readable for as many bytes as
/// requested. They live as long as the call.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Bytes(*const u8);

impl Bytes {
    /// Returns a pointer from an address that the caller keeps alive.
    pub(crate) fn at(address: usize) -> Self {
        Self(address as *const u8)
    }

    /// Returns the address that the pointer holds.
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    /// Returns the bytes before the first 0, or `most` bytes if none of them is 0.
    pub(crate) fn until_zero<'a>(self, most: usize) -> Option<&'a [u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the pointer is not null, so all bytes up to the first 0 are readable, and no more than `most` are read.
        let len = unsafe { libc::strnlen(self.0.cast(), most) };
        self.read(len)
    }

    /// Returns the first `count` bytes.
    pub(crate) fn read<'a>(self, count: usize) -> Option<&'a [u8]> {
        // SAFETY: the pointer is not null, so as many bytes are readable as the function's documentation requires.
        (!self.0.is_null()).then(|| unsafe { std::slice::from_raw_parts(self.0, count) })
    }
}

/// A kernel's arguments: null, or a pointer to the value of each parameter.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Arguments(*const *const c_void);

impl Arguments {
    /// Returns an array of pointers at an address.
    pub(crate) fn at(address: usize) -> Self {
        Self(address as *const *const c_void)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Copies the parameters' values into `to`, each to its own range there.
    ///
    /// A launch with too few arguments is an easy mistake, and what follows the array is then taken for more pointers. So
    /// a pointer is used only if something can be read there.
    ///
    /// # Errors
    /// Returns the first parameter without a value, and the pointer that was given for it.
    pub(crate) fn read(self, places: &[Range<usize>], to: &mut [u8]) -> Result<(), (usize, *const c_void)> {
        if self.0.is_null() && !places.is_empty() {
            return Err((0, std::ptr::null()));
        }
        for (index, place) in places.iter().enumerate() {
            // SAFETY: the pointer is not null, so it is an array with a pointer for each parameter.
            let value = unsafe { *self.0.add(index) };
            let (first, len) = (value.addr(), place.len());
            let last = first.saturating_add(len.saturating_sub(1));
            let is_on_one_page = first / PAGE == last / PAGE;
            if !is_readable(first) || !is_on_one_page && !is_readable(last) {
                return Err((index, value));
            }
            // SAFETY: the caller guarantees that the pointer points to a value of the parameter's size.
            let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) };
            to[place.clone()].copy_from_slice(value);
        }
        Ok(())
    }
}

/// The bytes of the smallest page that Linux uses. All bytes of a page can be read, or none.
const PAGE: usize = 4096;

/// Returns whether this process can read the eight bytes around an address.
///
/// Linux reads the new signal mask before it finds that the operation does not exist. Abseil's `AddressIsReadable` makes
/// the same call.
fn is_readable(address: usize) -> bool {
    const NO_OPERATION: c_int = -1;
    const MASK_BYTES: usize = 8;
    let mask = std::ptr::without_provenance::<c_void>(address & !(MASK_BYTES - 1));
    let null = std::ptr::null::<c_void>();
    // SAFETY: with this operation, the call changes nothing.
    let status = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_OPERATION, mask, null, MASK_BYTES) };
    // For a null pointer, there is no mask to read.
    !mask.is_null() && (status == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT))
}
