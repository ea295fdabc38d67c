//! Reduces the buffers of several ranks as NCCL's kernels do: in ring order.

use half::{bf16, f16};

use crate::features::vectorized;

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "each variant is named after its type")]
pub enum DataType {
    Int8 = 0,
    Uint8 = 1,
    Int32 = 2,
    Uint32 = 3,
    Int64 = 4,
    Uint64 = 5,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    Bfloat16 = 9,
    Float8e4m3 = 10,
    Float8e5m2 = 11,
}

const DATA_TYPES: [(DataType, &str, u64); 12] = [
    (DataType::Int8, "int8", 1),
    (DataType::Uint8, "uint8", 1),
    (DataType::Int32, "int32", 4),
    (DataType::Uint32, "uint32", 4),
    (DataType::Int64, "int64", 8),
    (DataType::Uint64, "uint64", 8),
    (DataType::Float16, "float16", 2),
    (DataType::Float32, "float32", 4),
    (DataType::Float64, "float64", 8),
    (DataType::Bfloat16, "bfloat16", 2),
    (DataType::Float8e4m3, "float8e4m3", 1),
    (DataType::Float8e5m2, "float8e5m2", 1),
];

impl DataType {
    /// Returns the type with this C value.
    pub fn from_value(value: u32) -> Option<Self> {
        DATA_TYPES.get(value as usize).map(|entry| entry.0)
    }

    /// Returns an element's size in bytes.
    pub fn size(self) -> u64 {
        DATA_TYPES[self as usize].2
    }

    /// Returns whether elements can be reduced here. Elements of other types can only be copied.
    pub fn is_reducible(self) -> bool {
        !matches!(self, Self::Float8e4m3 | Self::Float8e5m2)
    }

    /// Returns the name of the C constant.
    pub fn c_name(self) -> String {
        let name = self.to_string();
        let (first, rest) = name.split_at(1);
        format!("nccl{}{rest}", first.to_uppercase())
    }
}

impl std::fmt::Display for DataType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(DATA_TYPES[*self as usize].1)
    }
}

/// `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "each variant is named after its operator")]
pub enum Operator {
    Sum = 0,
    Product = 1,
    Max = 2,
    Min = 3,
    Average = 4,
    PreMulSum = 5,
}

impl Operator {
    /// Returns the operator with this C value. The values for user-defined operators belong to their communicator.
    pub fn from_value(value: u32) -> Option<Self> {
        [Self::Sum, Self::Product, Self::Max, Self::Min, Self::Average]
            .into_iter()
            .find(|op| *op as u32 == value)
    }

    /// Returns whether switches can reduce data of this type (NVLS; `ncclNvlsSupported` in NCCL's `device.h`).
    pub fn is_reduced_in_switches(self, data_type: DataType) -> bool {
        use DataType::{Bfloat16, Float16, Float32, Float64, Int32, Int64, Uint32, Uint64};
        match data_type {
            Int32 | Uint32 | Int64 | Uint64 | Float16 | Bfloat16 => {
                matches!(self, Self::Sum | Self::Min | Self::Max)
            }
            Float32 | Float64 => self == Self::Sum,
            _ => false,
        }
    }
}

impl std::fmt::Display for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Product => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Average => "avg",
            Self::PreMulSum => "premulsum",
        })
    }
}

/// How the elements of several ranks are reduced to one.
///
/// As in NCCL, `Average` multiplies each float by 1/n in its own type before summing, but divides integer sums at the
/// end. `PreMulSum` multiplies each rank's elements by that rank's scalar first.
#[derive(Clone, Debug)]
pub struct Reduction {
    /// The elements' type.
    pub data_type: DataType,
    /// How two elements are reduced to one.
    pub operator: Operator,
    /// The number of ranks.
    pub ranks: usize,
    /// Each rank's scalar, for `PreMulSum`. Only the type's bytes are used.
    pub scales: Vec<[u8; 8]>,
}

impl Reduction {
    /// Reduces inputs with the same number of little-endian elements into `out`, in the order of the inputs. Each input is
    /// paired with its rank.
    pub fn reduce(&self, out: &mut [u8], inputs: &[(usize, &[u8])]) {
        reduce(self, out, inputs);
    }

    #[inline(always)]
    fn of_any_type(&self, out: &mut [u8], inputs: &[(usize, &[u8])]) {
        match self.data_type {
            DataType::Int8 => self.of_type::<i8, 1>(out, inputs),
            DataType::Uint8 => self.of_type::<u8, 1>(out, inputs),
            DataType::Int32 => self.of_type::<i32, 4>(out, inputs),
            DataType::Uint32 => self.of_type::<u32, 4>(out, inputs),
            DataType::Int64 => self.of_type::<i64, 8>(out, inputs),
            DataType::Uint64 => self.of_type::<u64, 8>(out, inputs),
            DataType::Float16 => self.of_type::<f16, 2>(out, inputs),
            DataType::Float32 => self.of_type::<f32, 4>(out, inputs),
            DataType::Float64 => self.of_type::<f64, 8>(out, inputs),
            DataType::Bfloat16 => self.of_type::<bf16, 2>(out, inputs),
            DataType::Float8e4m3 | DataType::Float8e5m2 => unreachable!("rejected by the call"),
        }
    }

    #[inline(always)]
    fn of_type<T: Element<SIZE>, const SIZE: usize>(&self, out: &mut [u8], inputs: &[(usize, &[u8])]) {
        // Each operator has its own loop, which the compiler can vectorize.
        match self.operator {
            Operator::Sum => combine(out, inputs, T::plus),
            Operator::Product => combine(out, inputs, T::times),
            Operator::Max => combine(out, inputs, T::larger),
            Operator::Min => combine(out, inputs, T::smaller),
            Operator::Average | Operator::PreMulSum => {
                for (at, &(rank, input)) in inputs.iter().enumerate() {
                    match (at, self.factor::<T, SIZE>(rank)) {
                        (0, Some(factor)) => fold::<T, SIZE>(out, input, |_, x| x.times(factor)),
                        (_, Some(factor)) => fold::<T, SIZE>(out, input, |sum, x| sum.plus(x.times(factor))),
                        (0, None) => out.copy_from_slice(input),
                        (_, None) => fold::<T, SIZE>(out, input, T::plus),
                    }
                }
            }
        }
        if self.operator == Operator::Average && T::reciprocal(self.ranks).is_none() {
            for element in out.as_chunks_mut::<SIZE>().0 {
                *element = T::read(*element).divided(self.ranks).write();
            }
        }
    }
}

impl Reduction {
    /// Returns the factor by which the elements of a rank are multiplied first.
    #[inline(always)]
    fn factor<T: Element<SIZE>, const SIZE: usize>(&self, rank: usize) -> Option<T> {
        match self.operator {
            Operator::Average => T::reciprocal(self.ranks),
            _ => self.scales[rank].first_chunk().map(|bytes: &[u8; SIZE]| T::read(*bytes)),
        }
    }
}

vectorized! {
    fn reduce(reduction: &Reduction, out: &mut [u8], inputs: &[(usize, &[u8])]) = Reduction::of_any_type
}

/// Reduces the elements at the same index of all inputs with `f`, in the order of the inputs.
#[inline(always)]
fn combine<T: Element<SIZE>, const SIZE: usize>(
    out: &mut [u8],
    inputs: &[(usize, &[u8])],
    f: impl Fn(T, T) -> T + Copy,
) {
    match inputs {
        [] => {}
        [(_, only)] => out.copy_from_slice(only),
        [(_, first), (_, second), others @ ..] => {
            let pairs = first.as_chunks::<SIZE>().0.iter().zip(second.as_chunks::<SIZE>().0);
            for (out, (first, second)) in out.as_chunks_mut::<SIZE>().0.iter_mut().zip(pairs) {
                *out = f(T::read(*first), T::read(*second)).write();
            }
            for (_, input) in others {
                fold::<T, SIZE>(out, input, f);
            }
        }
    }
}

/// Replaces each element of `out` with the result of `f` for that element and the element of `input` at the same index.
#[inline(always)]
fn fold<T: Element<SIZE>, const SIZE: usize>(out: &mut [u8], input: &[u8], f: impl Fn(T, T) -> T) {
    let (out, _) = out.as_chunks_mut::<SIZE>();
    let (input, _) = input.as_chunks::<SIZE>();
    for (out, input) in out.iter_mut().zip(input) {
        *out = f(T::read(*out), T::read(*input)).write();
    }
}

/// An element type with a size of `SIZE` bytes.
trait Element<const SIZE: usize>: Copy {
    fn read(bytes: [u8; SIZE]) -> Self;
    fn write(self) -> [u8; SIZE];
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    /// Returns the factor, rounded to the type, by which an average multiplies each rank's elements. Returns `None` if
    /// the average divides their sum instead.
    fn reciprocal(ranks: usize) -> Option<Self>;
    fn divided(self, ranks: usize) -> Self;
}

macro_rules! integer {
    ($($t:ident $size:literal),*) => { $(
        impl Element<$size> for $t {
            #[inline(always)]
            fn read(bytes: [u8; $size]) -> Self { Self::from_le_bytes(bytes) }
            #[inline(always)]
            fn write(self) -> [u8; $size] { self.to_le_bytes() }
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { self.max(other) }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { self.min(other) }
            fn reciprocal(_: usize) -> Option<Self> { None }
            #[inline(always)]
            fn divided(self, ranks: usize) -> Self { (self as i128 / ranks as i128) as Self }
        }
    )* };
}
integer!(i8 1, u8 1, i32 4, u32 4, i64 8, u64 8);

macro_rules! float {
    ($($t:ident $size:literal $from:path),*) => { $(
        impl Element<$size> for $t {
            #[inline(always)]
            fn read(bytes: [u8; $size]) -> Self { Self::from_le_bytes(bytes) }
            #[inline(always)]
            fn write(self) -> [u8; $size] { self.to_le_bytes() }
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { if self.is_nan() || self > other { self } else { other } }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { if self.is_nan() || self < other { self } else { other } }
            fn reciprocal(ranks: usize) -> Option<Self> { Some($from(1.0 / ranks as f64)) }
            #[inline(always)]
            fn divided(self, _: usize) -> Self { self }
        }
    )* };
}
float!(f32 4 to_f32, f64 8 std::convert::identity, f16 2 f16::from_f64, bf16 2 bf16::from_f64);

fn to_f32(x: f64) -> f32 {
    x as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduce(data_type: DataType, operator: Operator, inputs: &[&[u8]]) -> Vec<u8> {
        let mut out = vec![0; inputs[0].len()];
        let scales = vec![2.0f32.to_le_bytes().to_vec().repeat(2).try_into().unwrap(); inputs.len()];
        let reduction = Reduction { data_type, operator, ranks: inputs.len(), scales };
        reduction.reduce(&mut out, &inputs.iter().copied().enumerate().collect::<Vec<_>>());
        out
    }

    #[test]
    fn every_operator_over_three_ranks() {
        let bytes = |values: [f32; 4]| values.map(f32::to_le_bytes).concat();
        let inputs = [bytes([1.0, -2.0, 8.0, 0.5]), bytes([3.0, 5.0, 2.0, 0.5]), bytes([2.0, 3.0, 2.0, 2.0])];
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let of = |operator| -> Vec<f32> {
            let out = reduce(DataType::Float32, operator, &inputs);
            out.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        assert_eq!(of(Operator::Sum), [6.0, 6.0, 12.0, 3.0]);
        assert_eq!(of(Operator::Product), [6.0, -30.0, 32.0, 0.5]);
        assert_eq!(of(Operator::Max), [3.0, 5.0, 8.0, 2.0]);
        assert_eq!(of(Operator::Min), [1.0, -2.0, 2.0, 0.5]);
        assert_eq!(of(Operator::PreMulSum), [12.0, 12.0, 24.0, 6.0]);
        let third = 1.0f32 / 3.0;
        assert_eq!(of(Operator::Average)[0], third + 3.0 * third + 2.0 * third);
    }

    #[test]
    fn an_integer_average_sums_first_and_then_divides() {
        let inputs: [&[u8]; 2] = [&[1, 200], &[2, 100]];
        assert_eq!(reduce(DataType::Uint8, Operator::Average, &inputs), [1, 22]);
        assert_eq!(reduce(DataType::Uint8, Operator::Sum, &inputs), [3, 44]);
    }
}
