//! The arithmetic of reductions, in the order in which a ring of ranks does it.

use half::{bf16, f16};

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "each variant is its type's name")]
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
    /// The type with this C value.
    pub fn from_value(value: u32) -> Option<Self> {
        DATA_TYPES.get(value as usize).map(|entry| entry.0)
    }

    /// Bytes of an element.
    pub fn size(self) -> u64 {
        DATA_TYPES[self as usize].2
    }

    /// Whether elements can be combined here. The others can only be moved.
    pub(super) fn is_reducible(self) -> bool {
        !matches!(self, Self::Float8e4m3 | Self::Float8e5m2)
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
#[expect(missing_docs, reason = "each variant is its operator's name")]
pub enum Operator {
    Sum = 0,
    Product = 1,
    Max = 2,
    Min = 3,
    Average = 4,
}

impl Operator {
    /// The operator with this C value.
    pub fn from_value(value: u32) -> Option<Self> {
        [Self::Sum, Self::Product, Self::Max, Self::Min, Self::Average]
            .into_iter()
            .find(|op| *op as u32 == value)
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
        })
    }
}

/// How the elements of several ranks become one.
///
/// `Average` multiplies each float by 1/n in its own type before summing, and divides sums of integers at the end, as NCCL
/// does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    pub(super) data_type: DataType,
    pub(super) operator: Operator,
    pub(super) ranks: usize,
}

impl Reduction {
    /// Reduces inputs of equally many little-endian elements into `out`, in their order.
    pub(super) fn reduce<'a>(&self, out: &mut [u8], inputs: impl Iterator<Item = &'a [u8]>) {
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
            DataType::Float8e4m3 | DataType::Float8e5m2 => unreachable!("refused at the call"),
        }
    }

    fn of_type<'a, T: Element<SIZE>, const SIZE: usize>(
        &self,
        out: &mut [u8],
        mut inputs: impl Iterator<Item = &'a [u8]>,
    ) {
        let &Self { operator, ranks, .. } = self;
        let Some(first) = inputs.next() else { return };
        fold::<T, SIZE>(out, first, |_, x| T::prepare(x, operator, ranks));
        for input in inputs {
            // One loop for each operator, which the compiler can make wide.
            match operator {
                Operator::Sum => fold::<T, SIZE>(out, input, |sum, x| T::combine(sum, x, Operator::Sum)),
                Operator::Max => fold::<T, SIZE>(out, input, |sum, x| T::combine(sum, x, Operator::Max)),
                _ => {
                    fold::<T, SIZE>(out, input, |sum, x| {
                        T::combine(sum, T::prepare(x, operator, ranks), operator)
                    });
                }
            }
        }
        if operator == Operator::Average {
            for element in out.as_chunks_mut::<SIZE>().0 {
                *element = T::finish(T::read(*element), operator, ranks).write();
            }
        }
    }
}

/// Replaces each element of `out` by `f` of it and the element of `input` at the same place.
fn fold<T: Element<SIZE>, const SIZE: usize>(out: &mut [u8], input: &[u8], f: impl Fn(T, T) -> T) {
    let (out, _) = out.as_chunks_mut::<SIZE>();
    let (input, _) = input.as_chunks::<SIZE>();
    for (out, input) in out.iter_mut().zip(input) {
        *out = f(T::read(*out), T::read(*input)).write();
    }
}

/// An element type of `SIZE` bytes.
trait Element<const SIZE: usize>: Copy {
    fn read(bytes: [u8; SIZE]) -> Self;
    fn write(self) -> [u8; SIZE];
    fn combine(a: Self, b: Self, operator: Operator) -> Self;
    /// What is done to each rank's element first.
    fn prepare(x: Self, operator: Operator, ranks: usize) -> Self;
    /// What is done to the combined element last.
    fn finish(x: Self, operator: Operator, ranks: usize) -> Self;
}

macro_rules! integer {
    ($($t:ident $size:literal $wide:ident),*) => { $(
        impl Element<$size> for $t {
            fn read(bytes: [u8; $size]) -> Self { Self::from_le_bytes(bytes) }
            fn write(self) -> [u8; $size] { self.to_le_bytes() }
            fn combine(a: Self, b: Self, operator: Operator) -> Self {
                match operator {
                    Operator::Sum | Operator::Average => a.wrapping_add(b),
                    Operator::Product => a.wrapping_mul(b),
                    Operator::Max => a.max(b),
                    Operator::Min => a.min(b),
                }
            }
            fn prepare(x: Self, _: Operator, _: usize) -> Self { x }
            fn finish(x: Self, operator: Operator, ranks: usize) -> Self {
                match operator {
                    Operator::Average => (x as $wide / ranks as $wide) as Self,
                    _ => x,
                }
            }
        }
    )* };
}
integer!(i8 1 i128, u8 1 i128, i32 4 i128, u32 4 i128, i64 8 i128, u64 8 i128);

macro_rules! float {
    ($($t:ident $size:literal),*) => { $(
        impl Element<$size> for $t {
            fn read(bytes: [u8; $size]) -> Self { Self::from_le_bytes(bytes) }
            fn write(self) -> [u8; $size] { self.to_le_bytes() }
            fn combine(a: Self, b: Self, operator: Operator) -> Self {
                match operator {
                    Operator::Sum | Operator::Average => a + b,
                    Operator::Product => a * b,
                    Operator::Max => if a.is_nan() || a > b { a } else { b },
                    Operator::Min => if a.is_nan() || a < b { a } else { b },
                }
            }
            fn prepare(x: Self, operator: Operator, ranks: usize) -> Self {
                match operator {
                    Operator::Average => x * Self::reciprocal(ranks),
                    _ => x,
                }
            }
            fn finish(x: Self, _: Operator, _: usize) -> Self { x }
        }
    )* };
}
float!(f32 4, f64 8, f16 2, bf16 2);

/// 1/n, rounded to the type.
trait Reciprocal {
    fn reciprocal(n: usize) -> Self;
}

impl Reciprocal for f32 {
    fn reciprocal(n: usize) -> Self {
        1.0 / n as f32
    }
}

impl Reciprocal for f64 {
    fn reciprocal(n: usize) -> Self {
        1.0 / n as f64
    }
}

impl Reciprocal for f16 {
    fn reciprocal(n: usize) -> Self {
        f16::from_f32(1.0 / n as f32)
    }
}

impl Reciprocal for bf16 {
    fn reciprocal(n: usize) -> Self {
        bf16::from_f32(1.0 / n as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduce(data_type: DataType, operator: Operator, inputs: &[&[u8]]) -> Vec<u8> {
        let mut out = vec![0; inputs[0].len()];
        Reduction { data_type, operator, ranks: inputs.len() }.reduce(&mut out, inputs.iter().copied());
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
        let third = 1.0f32 / 3.0;
        assert_eq!(of(Operator::Average)[0], third + 3.0 * third + 2.0 * third);
    }

    #[test]
    fn an_integer_average_sums_first_and_divides_then() {
        let inputs: [&[u8]; 2] = [&[1, 200], &[2, 100]];
        assert_eq!(reduce(DataType::Uint8, Operator::Average, &inputs), [1, 22]);
        assert_eq!(reduce(DataType::Uint8, Operator::Sum, &inputs), [3, 44]);
    }
}
