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

    pub(super) fn is_unsupported(self) -> bool {
        matches!(self, Self::Float8e4m3 | Self::Float8e5m2)
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

/// Reduces the ranks' buffers, each of the same number of little-endian elements.
///
/// The buffer is cut into chunks of `per_chunk` elements. Chunk `c` is summed along the ring of ranks, from rank
/// `c + first` to the one before it, so that every rank gets the same bits and the order is the same on every run.
/// `Average` multiplies each float by 1/n in its own type before summing, and divides sums of integers at the end, as
/// NCCL does.
pub(super) fn along_ring(
    inputs: &[Vec<u8>],
    data_type: DataType,
    operator: Operator,
    per_chunk: u64,
    first: usize,
) -> Vec<u8> {
    let per_chunk = per_chunk.max(1) as usize;
    match data_type {
        DataType::Int8 => ring::<i8, 1>(inputs, operator, per_chunk, first),
        DataType::Uint8 => ring::<u8, 1>(inputs, operator, per_chunk, first),
        DataType::Int32 => ring::<i32, 4>(inputs, operator, per_chunk, first),
        DataType::Uint32 => ring::<u32, 4>(inputs, operator, per_chunk, first),
        DataType::Int64 => ring::<i64, 8>(inputs, operator, per_chunk, first),
        DataType::Uint64 => ring::<u64, 8>(inputs, operator, per_chunk, first),
        DataType::Float16 => ring::<f16, 2>(inputs, operator, per_chunk, first),
        DataType::Float32 => ring::<f32, 4>(inputs, operator, per_chunk, first),
        DataType::Float64 => ring::<f64, 8>(inputs, operator, per_chunk, first),
        DataType::Bfloat16 => ring::<bf16, 2>(inputs, operator, per_chunk, first),
        DataType::Float8e4m3 | DataType::Float8e5m2 => unreachable!("refused at the call"),
    }
}

fn ring<T: Element<SIZE>, const SIZE: usize>(
    inputs: &[Vec<u8>],
    operator: Operator,
    per_chunk: usize,
    first: usize,
) -> Vec<u8> {
    let ranks = inputs.len();
    let mut result = vec![0; inputs[0].len()];
    for (chunk, out) in result.chunks_mut(per_chunk * SIZE).enumerate() {
        let part = chunk * per_chunk * SIZE..chunk * per_chunk * SIZE + out.len();
        let along = |step: usize| &inputs[(chunk + first + step) % ranks][part.clone()];
        fold::<T, SIZE>(out, along(0), |_, x| T::prepare(x, operator, ranks));
        for step in 1..ranks {
            fold::<T, SIZE>(out, along(step), |sum, x| {
                T::combine(sum, T::prepare(x, operator, ranks), operator)
            });
        }
        for element in out.as_chunks_mut::<SIZE>().0 {
            *element = T::finish(T::read(*element), operator, ranks).write();
        }
    }
    result
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

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    #[test]
    fn every_operator_over_three_ranks() {
        let inputs =
            [bytes(&[1.0, -2.0, 8.0, 0.5]), bytes(&[3.0, 5.0, 2.0, 0.5]), bytes(&[2.0, 3.0, 2.0, 2.0])];
        let reduce = |operator| floats(&along_ring(&inputs, DataType::Float32, operator, 2, 1));
        assert_eq!(reduce(Operator::Sum), [6.0, 6.0, 12.0, 3.0]);
        assert_eq!(reduce(Operator::Product), [6.0, -30.0, 32.0, 0.5]);
        assert_eq!(reduce(Operator::Max), [3.0, 5.0, 8.0, 2.0]);
        assert_eq!(reduce(Operator::Min), [1.0, -2.0, 2.0, 0.5]);
        let third = 1.0f32 / 3.0;
        // Chunk 0 holds elements 0 and 1, and starts at rank 1.
        assert_eq!(reduce(Operator::Average)[0], 3.0 * third + 2.0 * third + third);
    }

    #[test]
    fn an_integer_average_sums_first_and_divides_then() {
        let inputs = [vec![1u8, 200], vec![2, 100]];
        assert_eq!(along_ring(&inputs, DataType::Uint8, Operator::Average, 1, 1), [1, 22]);
        assert_eq!(along_ring(&inputs, DataType::Uint8, Operator::Sum, 1, 1), [3, 44]);
    }

    #[test]
    fn a_chunk_is_summed_from_the_rank_behind_its_number() {
        // 2^24 + 1 rounds back to 2^24: the order decides the result.
        let big = 16_777_216.0f32;
        let inputs = [bytes(&[1.0; 3]), bytes(&[big; 3]), bytes(&[1.0; 3])];
        // Chunk 0: ranks 1, 2, 0; chunk 1: ranks 2, 0, 1; chunk 2: ranks 0, 1, 2.
        assert_eq!(
            floats(&along_ring(&inputs, DataType::Float32, Operator::Sum, 1, 1)),
            [big, big + 2.0, big]
        );
    }
}
