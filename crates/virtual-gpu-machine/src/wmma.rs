//! `wmma`: matrices that are loaded, multiplied, and stored by a warp, and `mma` for `.f64`. [`FragmentLayout`] defines
//! which lane holds which elements.

use crate::arithmetic::rounding::fma_double;
use crate::fault::{Access as Kind, Stop};
use crate::machine::Machine;
use crate::matrix::{dot, half_bits, single_bits, total, value};
use virtual_gpu_ptx::instruction::{
    Fragment, FragmentAccess, FragmentElement, FragmentLayout, FragmentProduct, MatrixElement, Value,
};

/// The maximum number of elements of a matrix.
const MOST: usize = 512;

/// The bits of a matrix's elements, row by row.
type Elements = [u64; MOST];

/// Where a lane accesses memory: its thread, the address, and the elements there.
struct Piece {
    thread: usize,
    address: u64,
    /// The number of bytes.
    length: usize,
    /// The place of the first element, row by row.
    first: usize,
    /// The distance from one element to the next.
    step: usize,
}

impl Machine<'_> {
    /// `wmma.load`. Like the other instructions here, it is not inlined, because its elements need much stack.
    #[inline(never)]
    pub(crate) fn load_fragment(
        &mut self,
        access: &FragmentAccess,
        warp: usize,
        present: u32,
    ) -> Result<(), Stop> {
        self.need_whole_warp(warp, present)?;
        self.looks += 1;
        let size = usize::from(access.fragment.element.bytes());
        let mut elements = [0; MOST];
        for Piece { thread, address, length, first, step } in self.pieces(access, warp, Kind::Read)? {
            let mut bytes = [0; 16];
            let bytes = &mut bytes[..length];
            self.watch_read(access.space, thread, address, bytes.len() as u64, false);
            self.read_bytes(access.space, Kind::Read, thread, address, bytes)?;
            for (at, element) in bytes.chunks_exact(size).enumerate() {
                let mut bits = [0; 8];
                bits[..size].copy_from_slice(element);
                elements[first + at * step] = u64::from_le_bytes(bits);
            }
        }
        self.scatter(&access.fragment, warp, &elements);
        Ok(())
    }

    /// `wmma.store`
    #[inline(never)]
    pub(crate) fn store_fragment(
        &mut self,
        access: &FragmentAccess,
        warp: usize,
        present: u32,
    ) -> Result<(), Stop> {
        self.need_whole_warp(warp, present)?;
        self.changes += 1;
        let size = usize::from(access.fragment.element.bytes());
        let elements = self.gather(&access.fragment, warp);
        for Piece { thread, address, length, first, step } in self.pieces(access, warp, Kind::Write)? {
            let mut bytes = [0; 16];
            let bytes = &mut bytes[..length];
            for (at, element) in bytes.chunks_exact_mut(size).enumerate() {
                element.copy_from_slice(&elements[first + at * step].to_le_bytes()[..size]);
            }
            self.watch_write(access.space, thread, address, bytes, false);
            self.write_bytes(access.space, Kind::Write, thread, address, bytes)?;
        }
        Ok(())
    }

    /// Splits a matrix in memory into pieces, and deals them to the lanes in turn. All lanes must have the same address
    /// and stride; those of the first lane are used. If the matrix is at an address that the manual forbids, and the launch is
    /// lenient, each piece is one element.
    fn pieces(&mut self, access: &FragmentAccess, warp: usize, kind: Kind) -> Result<Vec<Piece>, Stop> {
        let fragment = &access.fragment;
        let [rows, columns, mut piece, size] =
            [fragment.rows, fragment.columns, fragment.piece(), fragment.element.bytes()].map(usize::from);
        let (lines, length) = if access.by_columns { (columns, rows) } else { (rows, columns) };
        let start = self.address_of(access.address, warp * 32);
        let stride = u64::from(self.block.files.word_of(access.stride, warp * 32)) * size as u64
            / u64::from(fragment.element.numbers());
        let first = (start, u64::from(fragment.bytes()));
        for (address, alignment) in [first, (start.wrapping_add(stride), piece as u64)] {
            let aligned = self.check_alignment(access.space, kind, warp * 32, address, alignment);
            if let Err(fault) = aligned {
                if !self.launch.is_lenient {
                    return Err(fault);
                }
                self.unnoticed.get_or_insert(fault);
                piece = size;
            }
        }
        let each = piece / size;
        let pieces = (0..lines * length / each).map(|number| {
            let (line, at) = (number * each / length, number * each % length);
            let (first, step) = match access.by_columns {
                true => (at * columns + line, columns),
                false => (line * columns + at, 1),
            };
            let address =
                start.wrapping_add(stride.wrapping_mul(line as u64)).wrapping_add((at * size) as u64);
            Piece { thread: warp * 32 + number % 32, address, length: piece, first, step }
        });
        Ok(pieces.collect())
    }

    /// `wmma.mma`, and `mma` for `.f64`. As for `mma`, products and sums of small floating-point types are computed in double precision and
    /// rounded once. The sums of `.f64` are rounded after each product, in the order of the columns of `a`.
    #[inline(never)]
    pub(crate) fn multiply_fragments(
        &mut self,
        product: &FragmentProduct,
        warp: usize,
        present: u32,
    ) -> Result<(), Stop> {
        self.need_whole_warp(warp, present)?;
        let FragmentProduct { a, b, c, d, rounding, sum: of_integers, .. } = product;
        let [x, y, mut sums] = [a, b, c].map(|fragment| self.gather(fragment, warp));
        let [rows, inner, columns] = [a.rows, a.columns, b.columns].map(usize::from);
        match a.element {
            FragmentElement::F64 => {
                let fma = |x: u64, y: u64, sum: u64| {
                    fma_double(f64::from_bits(x), f64::from_bits(y), f64::from_bits(sum), *rounding).to_bits()
                };
                add_products(&x, &y, &mut sums, [rows, inner, columns], fma);
            }
            FragmentElement::S8 | FragmentElement::U8 => {
                let [x, y, mut totals] = [(a, &x), (b, &y), (c, &sums)]
                    .map(|(fragment, elements)| elements.map(|bits| integer(fragment.element, bits)));
                add_products(&x, &y, &mut totals, [rows, inner, columns], |x, y, sum| sum + x * y);
                sums = totals.map(|sum| total(sum, *of_integers).into());
            }
            FragmentElement::Packed(element) => {
                let [x, y] = [x, y].map(|elements| elements.map(u64::cast_signed));
                let mut totals = sums.map(|bits| integer(c.element, bits));
                add_products(&x, &y, &mut totals, [rows, inner, columns], |x, y, sum| {
                    sum + dot([element; 2], [x as u32, y as u32], of_integers.is_xor)
                });
                sums = totals.map(|sum| total(sum, *of_integers).into());
            }
            _ => {
                let [x, y, z] = [(a, &x), (b, &y), (c, &sums)]
                    .map(|(fragment, elements)| elements.map(|bits| number(fragment.element, bits)));
                let mut totals = [0.0; MOST];
                add_products(&x, &y, &mut totals, [rows, inner, columns], |x, y, sum| sum + x * y);
                let round = if d.element == FragmentElement::F16 { half_bits } else { single_bits };
                for ((bits, sum), addend) in sums.iter_mut().zip(totals).zip(z) {
                    *bits = round(sum + addend).into();
                }
            }
        }
        self.scatter(d, warp, &sums);
        Ok(())
    }

    /// Returns the elements that a warp's registers hold.
    fn gather(&self, fragment: &Fragment, warp: usize) -> Elements {
        let (each, bits, mask) = layout(fragment);
        let mut elements = [0; MOST];
        for lane in 0..32 {
            for at in 0..each {
                let register =
                    self.value_of(fragment.registers[at * bits / width(fragment)], warp * 32 + lane);
                elements[place(fragment, each, lane, at)] = register >> (at * bits % width(fragment)) & mask;
            }
        }
        elements
    }

    /// Sets a warp's registers to elements.
    fn scatter(&mut self, fragment: &Fragment, warp: usize, elements: &Elements) {
        let (each, bits, mask) = layout(fragment);
        let in_register = width(fragment) / bits;
        for lane in 0..32 {
            for (register, &value) in fragment.registers.iter().enumerate() {
                let packed = (0..in_register).fold(0, |packed, at| {
                    let own = (register * in_register + at) % each;
                    let element = elements[place(fragment, each, lane, own)] & mask;
                    packed | element << (at * bits)
                });
                match value {
                    Value::Word(slot) => self.block.files.set_word(slot, warp * 32 + lane, packed as u32),
                    Value::Long(slot) => self.block.files.set_long(slot, warp * 32 + lane, packed),
                }
            }
        }
    }
}

/// Adds the products of the rows of `x` and the columns of `y` to `sums`, with `add` for each pair of elements.
#[inline]
fn add_products<T: Copy>(
    x: &[T; MOST],
    y: &[T; MOST],
    sums: &mut [T; MOST],
    [rows, inner, columns]: [usize; 3],
    add: impl Fn(T, T, T) -> T,
) {
    for row in 0..rows {
        let sums = &mut sums[row * columns..][..columns];
        for (k, &x) in x[row * inner..][..inner].iter().enumerate() {
            for (sum, &y) in sums.iter_mut().zip(&y[k * columns..][..columns]) {
                *sum = add(x, y, *sum);
            }
        }
    }
}

/// Returns the number of elements that a lane holds, an element's number of bits, and a mask with these bits set.
fn layout(fragment: &Fragment) -> (usize, usize, u64) {
    let bits = 8 * usize::from(fragment.element.bytes());
    (usize::from(fragment.rows) * usize::from(fragment.columns) / 32, bits, u64::MAX >> (64 - bits))
}

/// Returns the place, row by row, of the `at`th element of a lane, which has `each` elements.
fn place(fragment: &Fragment, each: usize, lane: usize, at: usize) -> usize {
    let (columns, tall) = (usize::from(fragment.columns), usize::from(fragment.rows / 8));
    let (group, in_group) = (lane / 4, lane % 4);
    let (row, column) = match fragment.layout {
        FragmentLayout::Consecutive => return lane * each + at,
        FragmentLayout::Left => (group + 8 * (at % tall), in_group + 4 * (at / tall)),
        FragmentLayout::Right => (in_group + 4 * at, group),
        FragmentLayout::Sum => (group + 8 * (at / 2), 2 * in_group + at % 2),
    };
    row * columns + column
}

/// Returns the number of bits of a register.
fn width(fragment: &Fragment) -> usize {
    if fragment.element == FragmentElement::F64 { 64 } else { 32 }
}

/// Returns the value of an element of an integer type.
fn integer(element: FragmentElement, bits: u64) -> i64 {
    match element {
        FragmentElement::S8 => i64::from(bits as i8),
        FragmentElement::U8 => i64::from(bits as u8),
        _ => i64::from(bits as i32),
    }
}

/// Returns the value of an element of a floating-point type other than `.f64`.
fn number(element: FragmentElement, bits: u64) -> f64 {
    match element {
        FragmentElement::F16 => value(MatrixElement::F16, bits as u32, 0),
        FragmentElement::Bf16 => value(MatrixElement::Bf16, bits as u32, 0),
        FragmentElement::Tf32 => value(MatrixElement::Tf32, bits as u32, 0),
        _ => f64::from(f32::from_bits(bits as u32)),
    }
}
