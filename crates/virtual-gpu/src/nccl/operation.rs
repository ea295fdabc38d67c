//! What a collective is: its arguments, how much each rank gives and gets, and what may lie where.

use std::ops::Range;

use super::reduce::{DataType, Operator, along_ring};
use crate::time::collective::Pattern;

/// A collective operation. A root is a rank's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Every rank gets the reduction of all ranks' buffers.
    AllReduce(Operator),
    /// Every rank gets the root's buffer.
    Broadcast {
        /// The rank that gives.
        root: i32,
    },
    /// The root gets the reduction of all ranks' buffers.
    Reduce {
        /// How they are reduced.
        operator: Operator,
        /// The rank that gets it.
        root: i32,
    },
    /// Every rank gets all ranks' buffers, in the order of ranks.
    AllGather,
    /// Every rank gets its part of the reduction of all ranks' buffers.
    ReduceScatter(Operator),
}

/// What all ranks of one call must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The operation, with its operator or root.
    pub collective: Collective,
    /// Elements, as the C function counts them: those that a rank gives to an all-gather or gets from a
    /// reduce-scatter, and those of the whole buffer otherwise.
    pub count: u64,
    /// Type of the elements.
    pub data_type: DataType,
}

/// Device addresses of a rank's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// What the rank gives.
    pub send: u64,
    /// Where its result goes.
    pub receive: u64,
}

impl Operation {
    /// The C function.
    pub(super) fn function(&self) -> &'static str {
        match self.collective {
            Collective::AllReduce(_) => "ncclAllReduce",
            Collective::Broadcast { .. } => "ncclBroadcast",
            Collective::Reduce { .. } => "ncclReduce",
            Collective::AllGather => "ncclAllGather",
            Collective::ReduceScatter(_) => "ncclReduceScatter",
        }
    }

    pub(super) fn root(&self) -> Option<i32> {
        match self.collective {
            Collective::Broadcast { root } | Collective::Reduce { root, .. } => Some(root),
            _ => None,
        }
    }

    /// Bytes of `count` elements.
    pub(super) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.data_type.size())
    }

    /// Bytes that `rank` gives. `None` where its send buffer is not looked at.
    pub(super) fn given(&self, rank: usize, world_size: usize) -> Option<u64> {
        match self.collective {
            Collective::Broadcast { root } if root as usize != rank => None,
            Collective::ReduceScatter(_) => Some(self.bytes().saturating_mul(world_size as u64)),
            _ => Some(self.bytes()),
        }
    }

    /// Bytes that `rank` gets. `None` where its receive buffer is not looked at.
    pub(super) fn got(&self, rank: usize, world_size: usize) -> Option<u64> {
        match self.collective {
            Collective::Reduce { root, .. } if root as usize != rank => None,
            Collective::AllGather => Some(self.bytes().saturating_mul(world_size as u64)),
            _ => Some(self.bytes()),
        }
    }

    /// Bytes of the larger of a rank's two buffers.
    pub(super) fn large_side(&self, world_size: usize) -> u64 {
        match self.collective {
            Collective::AllGather | Collective::ReduceScatter(_) => {
                self.bytes().saturating_mul(world_size as u64)
            }
            _ => self.bytes(),
        }
    }

    /// How it moves around the ring.
    pub(super) fn pattern(&self) -> Pattern {
        match self.collective {
            Collective::AllReduce(_) => Pattern::AllReduce,
            Collective::AllGather | Collective::ReduceScatter(_) => Pattern::OneSided,
            Collective::Broadcast { .. } | Collective::Reduce { .. } => Pattern::Rooted,
        }
    }

    /// Says what is wrong with buffers that overlap otherwise than in place.
    pub(super) fn overlap(&self, buffers: Buffers, rank: usize, world_size: usize) -> Option<String> {
        let (given, got) = (self.given(rank, world_size)?, self.got(rank, world_size)?);
        let Buffers { send, receive } = buffers;
        let part = rank as u64 * self.bytes();
        let (in_place, place) = match self.collective {
            Collective::AllGather => (send == receive + part, "the rank's own part of the receive buffer"),
            Collective::ReduceScatter(_) => {
                (receive == send + part, "the rank's own part of the send buffer")
            }
            _ => (send == receive, "the very same buffer"),
        };
        let apart = send + given <= receive || receive + got <= send;
        (!in_place && !apart).then(|| {
            let function = self.function();
            format!(
                "{function}: the send and receive buffers overlap: in place means {place}, and nothing else"
            )
        })
    }

    /// The result of a call, from what the ranks give in the order of ranks; each gets [`Self::share`] of it.
    pub(super) fn compute(&self, mut inputs: Vec<Vec<u8>>) -> Vec<u8> {
        let ranks = inputs.len() as u64;
        match self.collective {
            Collective::Broadcast { .. } => inputs.swap_remove(0),
            Collective::AllGather => inputs.concat(),
            Collective::AllReduce(operator) => {
                along_ring(&inputs, self.data_type, operator, self.count.div_ceil(ranks), 1)
            }
            Collective::ReduceScatter(operator) => {
                along_ring(&inputs, self.data_type, operator, self.count, 1)
            }
            Collective::Reduce { operator, root } => {
                along_ring(&inputs, self.data_type, operator, self.count, root as usize + 1)
            }
        }
    }

    /// The bytes of the result that `rank` gets.
    pub(super) fn share(&self, rank: usize, world_size: usize) -> Option<Range<usize>> {
        let bytes = self.got(rank, world_size)? as usize;
        let start = match self.collective {
            Collective::ReduceScatter(_) => rank * bytes,
            _ => 0,
        };
        Some(start..start + bytes)
    }
}

impl std::fmt::Display for Operation {
    /// `ncclReduce(count 10, float32, sum, root 2)`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}(count {}, {}", self.function(), self.count, self.data_type)?;
        if let Collective::AllReduce(operator)
        | Collective::ReduceScatter(operator)
        | Collective::Reduce { operator, .. } = self.collective
        {
            write!(f, ", {operator}")?;
        }
        if let Some(root) = self.root() {
            write!(f, ", root {root}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(collective: Collective) -> Operation {
        Operation { collective, count: 4, data_type: DataType::Float32 }
    }

    #[test]
    fn only_the_documented_overlaps_are_in_place() {
        let at = |send, receive| Buffers { send, receive };
        let bad = |collective, buffers| operation(collective).overlap(buffers, 1, 3).is_some();
        let sum = Collective::AllReduce(Operator::Sum);
        assert!(!bad(sum, at(100, 100)) && !bad(sum, at(100, 116)) && bad(sum, at(100, 104)));
        // Rank 1 of 3 gives 16 bytes and gets 48; its own part starts at byte 16.
        let gather = Collective::AllGather;
        assert!(!bad(gather, at(116, 100)) && bad(gather, at(100, 100)) && !bad(gather, at(148, 100)));
        let scatter = Collective::ReduceScatter(Operator::Sum);
        assert!(!bad(scatter, at(100, 116)) && bad(scatter, at(100, 100)) && !bad(scatter, at(100, 84)));
        // Off the root there is no second buffer to overlap.
        assert!(!bad(Collective::Broadcast { root: 0 }, at(100, 104)));
        assert!(!bad(Collective::Reduce { operator: Operator::Sum, root: 0 }, at(100, 104)));
    }

    #[test]
    fn a_reduce_scatter_and_an_all_gather_are_an_all_reduce() {
        let inputs: Vec<Vec<u8>> = (0..3u8)
            .map(|rank| {
                let values = (0..12u8).map(|i| 0.1 + f32::from(i) * 1.7 + f32::from(rank) / 3.0);
                values.flat_map(f32::to_le_bytes).collect()
            })
            .collect();
        let whole = Operation { count: 12, ..operation(Collective::AllReduce(Operator::Sum)) };
        let scatter = operation(Collective::ReduceScatter(Operator::Sum));
        let scattered = scatter.compute(inputs.clone());
        let parts = (0..3).map(|rank| scattered[scatter.share(rank, 3).unwrap()].to_vec()).collect();
        assert_eq!(operation(Collective::AllGather).compute(parts), whole.compute(inputs));
    }
}
