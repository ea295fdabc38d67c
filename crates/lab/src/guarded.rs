//! Buffers that detect out-of-bounds writes.

use std::sync::Arc;

use anyhow::bail;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceRepr};

use crate::compare::{Element, elements, show};

/// The number of guard elements on each side. It is odd, so that the buffer is less aligned than any allocation.
const GUARD: usize = 67;

/// A buffer inside a larger allocation, with canaries before and after it.
///
/// The code under test gets views of the inside. A call that writes too much, or to the wrong place, stays inside the
/// allocation. It causes no damage, and [`Self::read`] reports it.
#[derive(Debug)]
pub struct Guarded<T> {
    slice: CudaSlice<T>,
    len: usize,
}

impl<T: Element + DeviceRepr> Guarded<T> {
    /// Creates a buffer with these values on the stream's GPU.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn new(stream: &Arc<CudaStream>, values: &[T]) -> anyhow::Result<Self> {
        let mut whole: Vec<T> = (0..GUARD).map(T::canary).collect();
        whole.extend(values);
        whole.extend((GUARD..2 * GUARD).map(T::canary));
        Ok(Self { slice: stream.clone_htod(&whole)?, len: values.len() })
    }

    /// Returns a read-only view of the inside.
    pub fn view(&self) -> CudaView<'_, T> {
        self.slice.slice(GUARD..GUARD + self.len)
    }

    /// Returns a mutable view of the buffer between the guards.
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.slice_mut(GUARD..GUARD + self.len)
    }

    /// Waits for all work on the buffer's stream, and reads the inside.
    ///
    /// # Errors
    /// Fails if a driver call fails, or if a canary was overwritten. The error then contains its position and new value.
    pub fn read(&self) -> anyhow::Result<Vec<T>> {
        let stream = self.slice.stream();
        let whole = stream.clone_dtoh(&self.slice)?;
        stream.synchronize()?;
        check_guards(&whole, self.len)?;
        Ok(whole[GUARD..GUARD + self.len].to_vec())
    }
}

fn check_guards<T: Element>(whole: &[T], len: usize) -> anyhow::Result<()> {
    for index in 0..2 * GUARD {
        let at = if index < GUARD { index } else { index + len };
        let (expected, got) = (T::canary(index), whole[at]);
        if expected.bits() != got.bits() {
            let (expected, got) = show(expected, got);
            let place = if index < GUARD {
                format!("{} before its start", elements(GUARD - index))
            } else {
                format!("{} past its end", elements(index - GUARD + 1))
            };
            bail!(
                "something wrote outside a buffer of {}, {place}\n  expected the guard value {expected}, got {got}",
                elements(len)
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(len: usize) -> Vec<f32> {
        let front = (0..GUARD).map(f32::canary);
        front.chain((0..len).map(|i| i as f32)).chain((GUARD..2 * GUARD).map(f32::canary)).collect()
    }

    #[test]
    fn a_write_on_either_side_is_reported_with_its_distance() {
        assert!(check_guards(&whole(5), 5).is_ok());
        for (index, words) in [
            (GUARD - 1, "outside a buffer of 5 elements, 1 element before its start"),
            (GUARD + 5, "outside a buffer of 5 elements, 1 element past its end"),
            (0, "67 elements before its start"),
            (2 * GUARD + 4, "67 elements past"),
        ] {
            let mut values = whole(5);
            values[index] = 3.5;
            let error = check_guards(&values, 5).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("got 3.5"), "{error}");
        }
    }
}
