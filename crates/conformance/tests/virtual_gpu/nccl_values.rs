//! Compares every combination of collective, type, operator, world size, and buffer placement with a serial
//! computation.

use cudarc::driver::{CudaSlice, DeviceRepr, ValidAsZeroBits};
use cudarc::nccl::sys::{self, ncclDataType_t, ncclRedOp_t, ncclScalarResidence_t};
use half::{bf16, f16};
use lab::Check;

use crate::raw::{Arguments, Function, Rank, address, answer, in_group, raw_ranks};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl_values::int8", every_collective::<i8>),
        Check::new("nccl_values::uint8", every_collective::<u8>),
        Check::new("nccl_values::int32", every_collective::<i32>),
        Check::new("nccl_values::uint32", every_collective::<u32>),
        Check::new("nccl_values::int64", every_collective::<i64>),
        Check::new("nccl_values::uint64", every_collective::<u64>),
        Check::new("nccl_values::float16", every_collective::<f16>),
        Check::new("nccl_values::bfloat16", every_collective::<bf16>),
        Check::new("nccl_values::float32", every_collective::<f32>),
        Check::new("nccl_values::float64", every_collective::<f64>),
        Check::new("nccl_values::a_scalar_of_each_rank", scalars),
        Check::new("nccl_values::splits_in_the_order_of_keys", splits),
        Check::new("nccl_values::all_ranks_have_the_same_bits", same_bits),
    ]
}

/// An element with a small integer value, so that results from a few elements are exact in every type.
trait Element: DeviceRepr + ValidAsZeroBits + Copy + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    const TYPE: ncclDataType_t;
    /// Whether an average multiplies by 1/n first instead of dividing at the end.
    const FLOAT: bool;
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
}

macro_rules! elements {
    ($($t:ty, $type:ident, $float:literal, $of:expr, $value:expr;)*) => { $(
        impl Element for $t {
            const TYPE: ncclDataType_t = ncclDataType_t::$type;
            const FLOAT: bool = $float;
            fn of(value: f64) -> Self { $of(value) }
            fn value(self) -> f64 { $value(self) }
        }
    )* };
}

elements! {
    i8, ncclInt8, false, |x| x as i8, f64::from;
    u8, ncclUint8, false, |x| x as u8, f64::from;
    i32, ncclInt32, false, |x| x as i32, f64::from;
    u32, ncclUint32, false, |x| x as u32, f64::from;
    i64, ncclInt64, false, |x| x as i64, |x| x as f64;
    u64, ncclUint64, false, |x| x as u64, |x| x as f64;
    f16, ncclFloat16, true, f16::from_f64, f16::to_f64;
    bf16, ncclBfloat16, true, bf16::from_f64, bf16::to_f64;
    f32, ncclFloat32, true, |x| x as f32, f64::from;
    f64, ncclFloat64, true, std::convert::identity, std::convert::identity;
}

/// Returns a rank's value at a position: integers from 0 to 2, so that products of eight of them fit in every type.
fn given(rank: usize, at: usize) -> f64 {
    ((at * 7 + rank * 5 + at / 3) % 3) as f64
}

fn reduced<T: Element>(operator: ncclRedOp_t, n: usize, at: usize) -> T {
    let values = (0..n).map(|rank| given(rank, at));
    let sum: f64 = values.clone().sum();
    match operator {
        ncclRedOp_t::ncclSum => T::of(sum),
        ncclRedOp_t::ncclProd => T::of(values.product()),
        ncclRedOp_t::ncclMax => T::of(values.fold(0.0, f64::max)),
        ncclRedOp_t::ncclMin => T::of(values.fold(9.0, f64::min)),
        _ if !T::FLOAT => T::of((sum / n as f64).floor()),
        _ => T::of(sum / n as f64),
    }
}

const OPERATORS: [ncclRedOp_t; 5] = [
    ncclRedOp_t::ncclSum,
    ncclRedOp_t::ncclProd,
    ncclRedOp_t::ncclMax,
    ncclRedOp_t::ncclMin,
    ncclRedOp_t::ncclAvg,
];

/// The value of elements that a rank must not write.
const CANARY: f64 = 77.0;
/// The number of elements before a buffer, so that it does not start at the beginning of its allocation.
const OFFSET: usize = 3;

/// Runs one collective on one rank, in place or not. Returns the contents of its receive buffer and of the memory
/// around it.
fn run<T: Element>(rank: &Rank, function: Function, in_place: bool, with: Arguments) -> Vec<T> {
    let (n, own, count) = (rank.n, rank.rank, with.count);
    let size = size_of::<T>() as u64;
    let (give, get) = parts(function, n);
    let data: Vec<T> = (0..give * count).map(|at| T::of(given(own, at))).collect();
    let canaries = |len: usize| vec![T::of(CANARY); len + 2 * OFFSET];
    // In place, the smaller buffer is the rank's own part of the larger buffer.
    let shift = |larger: usize| if larger > 1 { own * count } else { 0 };
    let mut target = canaries(give.max(get) * count);
    let (send, receive, keep): (u64, u64, CudaSlice<T>);
    if in_place {
        let (give_at, get_at) = if get > give { (shift(get), 0) } else { (0, shift(give)) };
        target[OFFSET + give_at..][..data.len()].copy_from_slice(&data);
        keep = rank.stream.clone_htod(&target).unwrap();
        let address_at = |at: usize| address(&keep) + (OFFSET + at) as u64 * size;
        (send, receive) = (address_at(give_at), address_at(get_at));
        rank.call(function, send, receive, with).unwrap();
        let got = rank.stream.clone_dtoh(&keep).unwrap();
        return got[OFFSET + get_at..][..get * count].to_vec();
    }
    let mut source = canaries(data.len());
    source[OFFSET..][..data.len()].copy_from_slice(&data);
    let source = rank.stream.clone_htod(&source).unwrap();
    keep = rank.stream.clone_htod(&canaries(get * count)).unwrap();
    rank.call(function, address(&source) + OFFSET as u64 * size, address(&keep) + OFFSET as u64 * size, with)
        .unwrap();
    let got = rank.stream.clone_dtoh(&keep).unwrap();
    let around = got[..OFFSET].iter().chain(&got[OFFSET + get * count..]);
    assert!(
        around.into_iter().all(|value| *value == T::of(CANARY)),
        "{function:?} wrote outside of its buffer"
    );
    got[OFFSET..][..get * count].to_vec()
}

/// Returns how many parts of `count` elements a rank sends, and how many it receives.
fn parts(function: Function, n: usize) -> (usize, usize) {
    match function {
        Function::AllGather | Function::Gather => (1, n),
        Function::ReduceScatter | Function::Scatter => (n, 1),
        Function::AllToAll => (n, n),
        _ => (1, 1),
    }
}

/// Returns what `rank` should receive, or `None` if it receives nothing.
fn expected<T: Element>(function: Function, rank: usize, n: usize, with: Arguments) -> Option<Vec<T>> {
    let Arguments { count, operator, root, .. } = with;
    let root = root as usize;
    let from = |rank: usize, start: usize| (start..start + count).map(move |at| T::of(given(rank, at)));
    let reduction = |start: usize| (start..start + count).map(|at| reduced(operator, n, at)).collect();
    match function {
        Function::AllReduce => Some(reduction(0)),
        Function::Reduce => (rank == root).then(|| reduction(0)),
        Function::ReduceScatter => Some(reduction(rank * count)),
        Function::Broadcast => Some(from(root, 0).collect()),
        Function::AllGather => Some((0..n).flat_map(|rank| from(rank, 0)).collect()),
        Function::Gather => (rank == root).then(|| (0..n).flat_map(|rank| from(rank, 0)).collect()),
        Function::Scatter => Some(from(root, rank * count).collect()),
        Function::AllToAll => Some((0..n).flat_map(|other| from(other, rank * count)).collect()),
        Function::Send | Function::Recv => None,
    }
}

/// Compares results. An average of floats is a sum of rounded products, so it may be off by a few units in the last
/// place.
fn agrees<T: Element>(got: T, expected: T, operator: ncclRedOp_t) -> bool {
    let digits = if T::TYPE == ncclDataType_t::ncclBfloat16 { 7 } else { 10 };
    let slack = f64::from(1 << digits).recip() * 4.0;
    match T::FLOAT && operator == ncclRedOp_t::ncclAvg {
        true => (got.value() - expected.value()).abs() <= slack * expected.value().abs().max(1.0),
        false => got == expected,
    }
}

fn every_collective<T: Element>() -> anyhow::Result<()> {
    use Function::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    for n in 1..=8 {
        raw_ranks(0, n, |rank| {
            let check = |function, in_place, with: Arguments| {
                let got = run::<T>(&rank, function, in_place, with);
                let Some(expected) = expected::<T>(function, rank.rank, n, with) else { return };
                for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    assert!(
                        agrees(*got, *expected, with.operator),
                        "{function:?} {with:?} in place {in_place}, rank {} of {n}, element {at}: {got:?}, not {expected:?}",
                        rank.rank
                    );
                }
            };
            let mut round = 0;
            for in_place in [false, true] {
                for function in [AllReduce, Reduce, ReduceScatter] {
                    for operator in OPERATORS {
                        // Use odd counts, some of them smaller than the number of ranks, and every root in turn.
                        round += 1;
                        let (count, root) = ([1, 5, 37][round % 3], (round % n) as i32);
                        check(function, in_place, Arguments { count, data_type: T::TYPE, operator, root });
                    }
                }
                for function in [Broadcast, Gather, Scatter] {
                    for root in 0..n as i32 {
                        let operator = ncclRedOp_t::ncclSum;
                        check(
                            function,
                            in_place,
                            Arguments { count: 11, data_type: T::TYPE, operator, root },
                        );
                    }
                }
                for function in [AllGather, AllToAll] {
                    let operator = ncclRedOp_t::ncclSum;
                    let with = Arguments { count: 13, data_type: T::TYPE, operator, root: 0 };
                    check(function, in_place && function == AllGather, with);
                }
            }
        });
    }
    Ok(())
}

/// Each rank's data is multiplied by the rank's own scalar, which is on the host or on the device.
fn scalars() -> anyhow::Result<()> {
    for residence in [ncclScalarResidence_t::ncclScalarHostImmediate, ncclScalarResidence_t::ncclScalarDevice]
    {
        raw_ranks(0, 3, |rank| {
            let factor = rank.rank as f32 + 0.5;
            let on_device = rank.stream.clone_htod(&[factor]).unwrap();
            rank.stream.synchronize().unwrap();
            let scalar = match residence {
                ncclScalarResidence_t::ncclScalarDevice => address(&on_device) as *mut _,
                ncclScalarResidence_t::ncclScalarHostImmediate => (&raw const factor).cast_mut().cast(),
            };
            let mut operator = ncclRedOp_t::ncclSum;
            let data_type = ncclDataType_t::ncclFloat32;
            // SAFETY: the scalar is where the call says it is, and lives until the stream is done.
            answer(unsafe {
                sys::ncclRedOpCreatePreMulSum(&mut operator, scalar, data_type, residence, rank.comm)
            })
            .unwrap();
            let buffer = rank.stream.clone_htod(&[1.0f32, 2.0, 4.0, 8.0]).unwrap();
            let at = address(&buffer);
            rank.call(Function::AllReduce, at, at, Arguments { count: 4, data_type, operator, root: 0 })
                .unwrap();
            // The call keeps the operator alive.
            // SAFETY: the communicator is alive.
            answer(unsafe { sys::ncclRedOpDestroy(operator, rank.comm) }).unwrap();
            assert_eq!(rank.stream.clone_dtoh(&buffer).unwrap(), [4.5, 9.0, 18.0, 36.0]);
        });
    }
    Ok(())
}

/// Splits the ranks into odd and even. Each half is ordered by its keys and works in parallel with its parent and its
/// sibling.
fn splits() -> anyhow::Result<()> {
    raw_ranks(0, 6, |rank| {
        let own = rank.rank as i32;
        let split = |comm, color, key| {
            let mut child = std::ptr::null_mut();
            // SAFETY: the communicator is alive, and the child is writable.
            answer(unsafe { sys::ncclCommSplit(comm, color, key, &mut child, std::ptr::null_mut()) })
                .unwrap();
            child
        };
        let half = Rank::of(split(rank.comm, own % 2, -own), rank.stream.clone());
        assert_eq!((half.n, half.rank), (3, (5 - rank.rank) / 2));
        // Ranks with equal keys keep their order. Rank 0 takes part but gets no communicator.
        let rest = split(rank.comm, if own == 0 { -1 } else { 0 }, 7);
        let buffer = rank.stream.clone_htod(&[own as f32]).unwrap();
        let sum = |of: &Rank| {
            let with = crate::raw::floats(1);
            of.call(Function::AllReduce, address(&buffer), address(&buffer), with).unwrap();
            rank.stream.clone_dtoh(&buffer).unwrap()[0]
        };
        assert_eq!(sum(&half), [6.0, 9.0][rank.rank % 2]);
        if own == 0 {
            assert!(rest.is_null());
        } else {
            let rest = Rank::of(rest, rank.stream.clone());
            assert_eq!((rest.n, rest.rank), (5, rank.rank - 1));
            assert_eq!(sum(&rest), 3.0 * 9.0 + 2.0 * 6.0);
        }
        // In a group, the communicator exists only after the group ends.
        let mut child = std::ptr::null_mut();
        in_group(|| {
            // SAFETY: as above.
            answer(unsafe { sys::ncclCommSplit(rank.comm, 1, 0, &mut child, std::ptr::null_mut()) }).unwrap();
        })
        .unwrap();
        assert_eq!(Rank::of(child, rank.stream.clone()).n, 6);
    });
    Ok(())
}

/// Sums numbers whose sum rounds differently in every order.
fn same_bits() -> anyhow::Result<()> {
    let sums = raw_ranks(0, 5, |rank| {
        let data: Vec<f32> =
            (0..999).map(|at| 1.0 / (1.0 + (at * 31 + rank.rank * 17) as f32 % 97.0)).collect();
        let buffer = rank.stream.clone_htod(&data).unwrap();
        let at = address(&buffer);
        rank.call(Function::AllReduce, at, at, crate::raw::floats(999)).unwrap();
        let bits: Vec<u32> = rank.stream.clone_dtoh(&buffer).unwrap().into_iter().map(f32::to_bits).collect();
        bits
    });
    assert!(sums.windows(2).all(|pair| pair[0] == pair[1]));
    Ok(())
}
