//! Matrices that are spread across a warp's registers: each lane holds a fragment, as in the manual's figures.

use half::{bf16, f16};

use crate::arithmetic::fp8::from_fp8;
use crate::arithmetic::rounding::to_half;
use crate::arithmetic::single::NAN;
use crate::fault::{Access as Kind, FaultKind, Stop};
use crate::machine::Machine;
use virtual_gpu_ptx::instruction::{
    Accumulator, Fp8, IntegerSum, MatrixElement, MatrixLoad, MatrixProduct, MatrixStore, PackedElement,
    Rounding, Slot,
};

/// The number of rows of `a` and of the result.
const ROWS: usize = 16;

/// The number of columns of `b` and of the result.
const COLUMNS: usize = 8;

/// The maximum number of columns of `a` and rows of `b`.
const MOST_INNER: usize = 32;

impl Machine<'_> {
    /// `ldmatrix`: each 16-byte row is read by the lane that has its address.
    pub(crate) fn load_matrices(&mut self, load: &MatrixLoad, warp: usize, present: u32) -> Result<(), Stop> {
        self.need_whole_warp(warp, present)?;
        self.looks += 1;
        for (matrix, &destination) in load.destinations.iter().enumerate() {
            let mut elements = [[0_u16; 8]; 8];
            for (row, elements) in elements.iter_mut().enumerate() {
                let thread = warp * 32 + 8 * matrix + row;
                let address = self.address_of(load.address, thread);
                let mut bytes = [0; 16];
                self.watch_read(load.space, thread, address, 16, false);
                self.read_bytes(load.space, Kind::Read, thread, address, &mut bytes)?;
                *elements = std::array::from_fn(|at| u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]));
            }
            self.block.files.set_words_of_warp(destination, warp, present, |lane| {
                let (line, first) = (lane / 4, 2 * (lane % 4));
                let [low, high] = match load.transposed {
                    false => [elements[line][first], elements[line][first + 1]],
                    true => [elements[first][line], elements[first + 1][line]],
                };
                u32::from(low) | u32::from(high) << 16
            });
        }
        Ok(())
    }

    /// `stmatrix`: each 16-byte row is written by the lane that has its address.
    pub(crate) fn store_matrices(
        &mut self,
        store: &MatrixStore,
        warp: usize,
        present: u32,
    ) -> Result<(), Stop> {
        self.need_whole_warp(warp, present)?;
        self.changes += 1;
        for (matrix, &source) in store.sources.iter().enumerate() {
            let elements = self.elements(source, warp, store.transposed);
            for (row, elements) in elements.iter().enumerate() {
                let thread = warp * 32 + 8 * matrix + row;
                let address = self.address_of(store.address, thread);
                let mut bytes = [0; 16];
                for (to, element) in bytes.chunks_exact_mut(2).zip(elements) {
                    to.copy_from_slice(&element.to_le_bytes());
                }
                self.watch_write(store.space, thread, address, &bytes, false);
                self.write_bytes(store.space, Kind::Write, thread, address, &bytes)?;
            }
        }
        Ok(())
    }

    /// `movmatrix`
    pub(crate) fn transpose_matrix(
        &mut self,
        d: Slot,
        a: Slot,
        warp: usize,
        present: u32,
    ) -> Result<(), Stop> {
        self.need_whole_warp(warp, present)?;
        let elements = self.elements(a, warp, true);
        self.block.files.set_words_of_warp(d, warp, present, |lane| {
            let (row, first) = (lane / 4, 2 * (lane % 4));
            u32::from(elements[row][first]) | u32::from(elements[row][first + 1]) << 16
        });
        Ok(())
    }

    /// Returns the rows of a matrix of which each lane has two elements of a row, or of a column if it is transposed.
    fn elements(&self, source: Slot, warp: usize, transposed: bool) -> [[u16; 8]; 8] {
        let mut elements = [[0; 8]; 8];
        for lane in 0..32 {
            let word = self.block.files.word_of(source, warp * 32 + lane);
            let (line, first) = (lane / 4, 2 * (lane % 4));
            for (at, element) in [(first, word as u16), (first + 1, (word >> 16) as u16)] {
                let (row, column) = if transposed { (at, line) } else { (line, at) };
                elements[row][column] = element;
            }
        }
        elements
    }

    /// `mma`. Products and sums are computed in double precision and rounded once: the manual requires at least single
    /// precision (half precision if the result is half) and leaves order and rounding unspecified.
    pub(crate) fn multiply_matrices(
        &mut self,
        product: &MatrixProduct,
        warp: usize,
        present: u32,
    ) -> Result<(), Stop> {
        self.need_whole_warp(warp, present)?;
        let in_halves = match (product.elements, product.accumulator) {
            ([MatrixElement::Packed(a), MatrixElement::Packed(b)], Accumulator::S32(sum)) => {
                self.multiply_integers(product, [a, b], sum, warp, present);
                return Ok(());
            }
            (_, accumulator) => accumulator == Accumulator::F16,
        };
        let word = |slot: Slot, lane: usize| self.block.files.word_of(slot, warp * 32 + lane);
        // The number of elements in a register, and the distance to the elements in a lane's next register, for `a` and
        // `b`.
        let (each, step) = match product.elements[0] {
            MatrixElement::Tf32 => (1, 4),
            MatrixElement::F16 | MatrixElement::Bf16 => (2, 8),
            MatrixElement::E4m3 | MatrixElement::E5m2 | MatrixElement::Packed(_) => (4, 16),
        };
        let (mut a, mut b) = ([[0.0; MOST_INNER]; ROWS], [[0.0; COLUMNS]; MOST_INNER]);
        for lane in 0..32 {
            let (group, in_group) = (lane / 4, lane % 4);
            for at in 0..each {
                for (register, &slot) in product.a.iter().enumerate() {
                    let (row, column) = (group + 8 * (register % 2), each * in_group + step * (register / 2));
                    a[row][column + at] = value(product.elements[0], word(slot, lane), at);
                }
                for (register, &slot) in product.b.iter().enumerate() {
                    let row = each * in_group + step * register;
                    b[row + at][group] = value(product.elements[1], word(slot, lane), at);
                }
            }
        }
        let mut sums = [[0.0; COLUMNS]; ROWS];
        for (a, sums) in a.iter().zip(&mut sums) {
            for (a, b) in a.iter().zip(&b).take(step * product.b.len()) {
                sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
            }
        }
        let addend = |lane: usize, at: usize| match in_halves {
            true => value(MatrixElement::F16, word(product.c[at / 2], lane), at % 2),
            false => f64::from(f32::from_bits(word(product.c[at], lane))),
        };
        let results: [[u32; 4]; 32] = std::array::from_fn(|lane| {
            let total = std::array::from_fn(|at| {
                sums[lane / 4 + 8 * (at / 2)][2 * (lane % 4) + at % 2] + addend(lane, at)
            });
            let [first, second, third, fourth] = match in_halves {
                true => total.map(half_bits),
                false => return total.map(single_bits),
            };
            [first | second << 16, third | fourth << 16, 0, 0]
        });
        for (at, &d) in product.d.iter().enumerate() {
            self.block.files.set_words_of_warp(d, warp, present, |lane| results[lane][at]);
        }
        Ok(())
    }

    /// `mma` for integers. A register of `a` and one of `b` hold parts of the same length of a row and a column.
    fn multiply_integers(
        &mut self,
        product: &MatrixProduct,
        elements: [PackedElement; 2],
        sum: IntegerSum,
        warp: usize,
        present: u32,
    ) {
        let word = |slot: Slot, lane: usize| self.block.files.word_of(slot, warp * 32 + lane);
        let results: [[u32; 4]; 32] = std::array::from_fn(|lane| {
            std::array::from_fn(|at| {
                let Some(&c) = product.c.get(at) else { return 0 };
                let (row, column) = (lane / 4 + 8 * (at / 2), 2 * (lane % 4) + at % 2);
                let parts = product.b.iter().enumerate().flat_map(|(register, &b)| {
                    let a = product.a[row / 8 + 2 * register];
                    (0..4).map(move |part| (a, row % 8 * 4 + part, b, column * 4 + part))
                });
                let products = parts.map(|(a, a_lane, b, b_lane)| {
                    dot(elements, [word(a, a_lane), word(b, b_lane)], sum.is_xor)
                });
                total(i64::from(word(c, lane).cast_signed()) + products.sum::<i64>(), sum)
            })
        });
        for (at, &d) in product.d.iter().enumerate() {
            self.block.files.set_words_of_warp(d, warp, present, |lane| results[lane][at]);
        }
    }

    /// Rejects a matrix instruction executed by only some lanes of a warp, because its behavior is undefined.
    pub(crate) fn need_whole_warp(&self, warp: usize, present: u32) -> Result<(), Stop> {
        let thread = warp * 32 + present.trailing_zeros() as usize;
        match present {
            u32::MAX => Ok(()),
            _ => Err(self.fault(FaultKind::DivergentWarp { members: u32::MAX, present }, thread)),
        }
    }
}

/// Returns the `at`th element in a register.
pub(crate) fn value(element: MatrixElement, word: u32, at: usize) -> f64 {
    let half = word.checked_shr(16 * at as u32).unwrap_or(0) as u16;
    match element {
        MatrixElement::F16 => f16::from_bits(half).to_f64(),
        MatrixElement::Bf16 => bf16::from_bits(half).to_f64(),
        MatrixElement::Tf32 if f32::from_bits(word).is_nan() => f64::NAN,
        MatrixElement::Tf32 => f64::from(f32::from_bits(word & !0x1fff)),
        MatrixElement::Packed(element) => packed(element, word, at) as f64,
        MatrixElement::E4m3 => from_fp8((word >> (8 * at)) as u8, Fp8::E4m3),
        MatrixElement::E5m2 => from_fp8((word >> (8 * at)) as u8, Fp8::E5m2),
    }
}

pub(crate) fn half_bits(sum: f64) -> u32 {
    if sum.is_nan() { 0x7fff } else { to_half(sum, Rounding::Nearest).into() }
}

pub(crate) fn single_bits(sum: f64) -> u32 {
    if sum.is_nan() { NAN } else { (sum as f32).to_bits() }
}

/// Returns the `at`th number in a register.
fn packed(element: PackedElement, word: u32, at: usize) -> i64 {
    let bits = u32::from(element.bits());
    let aligned = word << (32 - bits * (at as u32 + 1));
    match element {
        PackedElement::S8 | PackedElement::S4 => i64::from(aligned.cast_signed() >> (32 - bits)),
        PackedElement::U8 | PackedElement::U4 | PackedElement::B1 => i64::from(aligned >> (32 - bits)),
    }
}

/// Returns the sum of the products of the numbers in two registers.
pub(crate) fn dot([a, b]: [PackedElement; 2], [x, y]: [u32; 2], is_xor: bool) -> i64 {
    match (a, is_xor) {
        (PackedElement::B1, true) => (x ^ y).count_ones().into(),
        (PackedElement::B1, false) => (x & y).count_ones().into(),
        _ => (0..32 / usize::from(a.bits())).map(|at| packed(a, x, at) * packed(b, y, at)).sum(),
    }
}

/// Returns the bits of a sum of 32-bit integers.
pub(crate) fn total(sum: i64, IntegerSum { saturate, .. }: IntegerSum) -> u32 {
    match saturate {
        true => sum.clamp(i32::MIN.into(), i32::MAX.into()) as u32,
        false => sum as u32,
    }
}
