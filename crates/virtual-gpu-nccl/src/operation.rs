//! What a collective is: its arguments, how much each rank gives and gets, and what may lie where.

use super::scale::Scale;
use virtual_gpu::time::choice::Enabled;
use virtual_gpu::time::preset::Preset;
use virtual_gpu::time::trace::Label;
use virtual_gpu::time::tuning::{self, Choice, Function, World};
use virtual_gpu_machine::reduction::{DataType, Operator};

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
    /// Every rank gets its part of each rank's buffer, in the order of ranks.
    AllToAll,
    /// The root gets all ranks' buffers, in the order of ranks.
    Gather {
        /// The rank that gets them.
        root: i32,
    },
    /// Every rank gets its part of the root's buffer.
    Scatter {
        /// The rank that gives.
        root: i32,
    },
}

/// What all ranks of one call must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The operation, with its operator or root.
    pub collective: Collective,
    /// Elements, as the C function counts them: those of one rank's part, where a buffer has a part for each rank, and
    /// those of the whole buffer otherwise.
    pub count: u64,
    /// Type of the elements.
    pub data_type: DataType,
}

/// How a collective is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plan {
    /// None: by sends and receives.
    pub(crate) choice: Option<Choice>,
    /// How long it takes once all ranks are ready.
    pub(crate) nanoseconds: u64,
}

/// Device addresses of a rank's buffers, and what its data is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// What the rank gives.
    pub send: u64,
    /// Where its result goes.
    pub receive: u64,
    /// The scalar of an operator that the program made.
    pub scale: Option<Scale>,
}

impl Plan {
    /// What a trace says of one rank's part.
    pub(crate) fn label(&self, operation: &Operation, rank: usize, world_size: usize) -> Label {
        let bytes = operation.large_side(world_size);
        let label = Label::new("collective", operation.function())
            .with("rank", rank)
            .with("ranks", world_size)
            .with("bytes", bytes)
            .with("type", operation.data_type.to_string());
        match self.choice {
            Some(Choice { algorithm, protocol, .. }) => {
                label.with("algorithm", algorithm.name()).with("protocol", protocol.name())
            }
            None => label,
        }
    }
}

impl Operation {
    /// The C function.
    pub(crate) fn function(&self) -> &'static str {
        match self.collective {
            Collective::AllReduce(_) => "ncclAllReduce",
            Collective::Broadcast { .. } => "ncclBroadcast",
            Collective::Reduce { .. } => "ncclReduce",
            Collective::AllGather => "ncclAllGather",
            Collective::ReduceScatter(_) => "ncclReduceScatter",
            Collective::AllToAll => "ncclAlltoAll",
            Collective::Gather { .. } => "ncclGather",
            Collective::Scatter { .. } => "ncclScatter",
        }
    }

    pub(crate) fn root(&self) -> Option<i32> {
        match self.collective {
            Collective::Broadcast { root }
            | Collective::Reduce { root, .. }
            | Collective::Gather { root }
            | Collective::Scatter { root } => Some(root),
            _ => None,
        }
    }

    pub(crate) fn operator(&self) -> Option<Operator> {
        match self.collective {
            Collective::AllReduce(operator)
            | Collective::ReduceScatter(operator)
            | Collective::Reduce { operator, .. } => Some(operator),
            _ => None,
        }
    }

    /// Bytes of `count` elements.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.data_type.size())
    }

    /// Bytes that `rank` gives. `None` where its send buffer is not looked at.
    pub(crate) fn given(&self, rank: usize, world_size: usize) -> Option<u64> {
        match self.collective {
            Collective::Broadcast { root } | Collective::Scatter { root } if root as usize != rank => None,
            Collective::ReduceScatter(_) | Collective::AllToAll | Collective::Scatter { .. } => {
                Some(self.bytes().saturating_mul(world_size as u64))
            }
            _ => Some(self.bytes()),
        }
    }

    /// Bytes that `rank` gets. `None` where its receive buffer is not looked at.
    pub(crate) fn got(&self, rank: usize, world_size: usize) -> Option<u64> {
        match self.collective {
            Collective::Reduce { root, .. } | Collective::Gather { root } if root as usize != rank => None,
            Collective::AllGather | Collective::AllToAll | Collective::Gather { .. } => {
                Some(self.bytes().saturating_mul(world_size as u64))
            }
            _ => Some(self.bytes()),
        }
    }

    /// Bytes of the larger of a rank's two buffers.
    pub(crate) fn large_side(&self, world_size: usize) -> u64 {
        match self.collective {
            Collective::AllReduce(_) | Collective::Broadcast { .. } | Collective::Reduce { .. } => {
                self.bytes()
            }
            _ => self.bytes().saturating_mul(world_size as u64),
        }
    }

    /// The function that NCCL's tuning model knows it by; none where it is made of sends and receives.
    fn tuned(&self) -> Option<Function> {
        Some(match self.collective {
            Collective::AllReduce(_) => Function::AllReduce,
            Collective::AllGather => Function::AllGather,
            Collective::ReduceScatter(_) => Function::ReduceScatter,
            Collective::Broadcast { .. } => Function::Broadcast,
            Collective::Reduce { .. } => Function::Reduce,
            Collective::AllToAll | Collective::Gather { .. } | Collective::Scatter { .. } => return None,
        })
    }

    /// How NCCL does it and how long that takes, by its tuning model.
    ///
    /// # Errors
    /// NCCL's sentence, where `NCCL_ALGO` and `NCCL_PROTO` leave nothing that can do it.
    pub(crate) fn plan(&self, preset: &Preset, enabled: &Enabled, world: World) -> Result<Plan, String> {
        let bytes = self.large_side(world.ranks);
        let Some(function) = self.tuned() else {
            // Each rank keeps its own part.
            let moved = bytes - bytes / world.ranks as u64;
            return Ok(Plan { choice: None, nanoseconds: tuning::point_to_point(preset, moved) });
        };
        let in_switch =
            self.operator().is_none_or(|operator| operator.is_reduced_in_switches(self.data_type));
        let choice = tuning::choose(preset, enabled, function, world, bytes, in_switch);
        let choice = choice.ok_or_else(|| enabled.none_left(function, &self.data_type.c_name()))?;
        Ok(Plan { choice: Some(choice), nanoseconds: choice.nanoseconds })
    }

    /// Says what is wrong with buffers that overlap otherwise than in place.
    pub(crate) fn overlap(&self, buffers: Buffers, rank: usize, world_size: usize) -> Option<String> {
        let (given, got) = (self.given(rank, world_size)?, self.got(rank, world_size)?);
        let Buffers { send, receive, .. } = buffers;
        let part = rank as u64 * self.bytes();
        let (in_place, rule) = match self.collective {
            Collective::AllGather | Collective::Gather { .. } => {
                (send == receive + part, "in place means the rank's own part of the receive buffer")
            }
            Collective::ReduceScatter(_) | Collective::Scatter { .. } => {
                (receive == send + part, "in place means the rank's own part of the send buffer")
            }
            Collective::AllToAll => (false, "it can't be done in place"),
            _ => (send == receive, "in place means the very same buffer"),
        };
        let apart = send + given <= receive || receive + got <= send;
        (!in_place && !apart).then(|| format!("{}: sendbuff and recvbuff overlap: {rule}", self.function()))
    }

    /// The pieces that the whole consists of.
    ///
    /// An all-reduce is cut into as many pieces as there are ranks. Piece `c` is summed along the ring of ranks, from rank
    /// `c + 1` to rank `c`, so that every rank gets the same bits, and the order is the same on every run.
    pub(crate) fn pieces(&self, ranks: usize) -> Vec<Piece> {
        let bytes = self.bytes();
        let ring = |first: usize, at: u64| (0..ranks).map(|step| ((first + step) % ranks, at)).collect();
        let everywhere = |at: u64| (0..ranks).map(|rank| (rank, at)).collect();
        match self.collective {
            Collective::Broadcast { root } => {
                vec![Piece { sources: vec![(root as usize, 0)], destinations: everywhere(0), bytes }]
            }
            Collective::AllGather => (0..ranks)
                .map(|rank| Piece {
                    sources: vec![(rank, 0)],
                    destinations: everywhere(rank as u64 * bytes),
                    bytes,
                })
                .collect(),
            Collective::AllReduce(_) => {
                let most = self.count.div_ceil(ranks as u64) * self.data_type.size();
                let starts =
                    (0..ranks).map(|piece| (piece, piece as u64 * most)).filter(|&(_, at)| at < bytes);
                let piece = |(piece, at): (usize, u64)| Piece {
                    sources: ring(piece + 1, at),
                    destinations: everywhere(at),
                    bytes: most.min(bytes - at),
                };
                starts.map(piece).collect()
            }
            Collective::ReduceScatter(_) => (0..ranks)
                .map(|rank| Piece {
                    sources: ring(rank + 1, rank as u64 * bytes),
                    destinations: vec![(rank, 0)],
                    bytes,
                })
                .collect(),
            Collective::Reduce { root, .. } => {
                let root = root as usize;
                vec![Piece { sources: ring(root + 1, 0), destinations: vec![(root, 0)], bytes }]
            }
            Collective::AllToAll => {
                let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
                let piece = |(from, to)| Piece {
                    sources: vec![(from, to as u64 * bytes)],
                    destinations: vec![(to, from as u64 * bytes)],
                    bytes,
                };
                pairs.map(piece).collect()
            }
            Collective::Gather { root } => (0..ranks)
                .map(|rank| Piece {
                    sources: vec![(rank, 0)],
                    destinations: vec![(root as usize, rank as u64 * bytes)],
                    bytes,
                })
                .collect(),
            Collective::Scatter { root } => (0..ranks)
                .map(|rank| Piece {
                    sources: vec![(root as usize, rank as u64 * bytes)],
                    destinations: vec![(rank, 0)],
                    bytes,
                })
                .collect(),
        }
    }
}

/// Bytes of a collective that are made in one way: the same ranks' bytes, combined in their order, go to the same ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Ranks, each with the piece's offset in its send buffer.
    pub(crate) sources: Vec<(usize, u64)>,
    /// Ranks, each with the piece's offset in its receive buffer.
    pub(crate) destinations: Vec<(usize, u64)>,
    /// Its length.
    pub(crate) bytes: u64,
}

impl std::fmt::Display for Operation {
    /// `ncclReduce(count 10, float32, sum, root 2)`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}(count {}, {}", self.function(), self.count, self.data_type)?;
        if let Some(operator) = self.operator() {
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
        let at = |send, receive| Buffers { send, receive, scale: None };
        let bad = |collective, buffers| operation(collective).overlap(buffers, 1, 3).is_some();
        let sum = Collective::AllReduce(Operator::Sum);
        assert!(!bad(sum, at(100, 100)) && !bad(sum, at(100, 116)) && bad(sum, at(100, 104)));
        // Rank 1 of 3 gives 16 bytes and gets 48; its own part starts at byte 16.
        let gather = Collective::AllGather;
        assert!(!bad(gather, at(116, 100)) && bad(gather, at(100, 100)) && !bad(gather, at(148, 100)));
        assert!(bad(Collective::AllToAll, at(100, 100)) && !bad(Collective::AllToAll, at(100, 148)));
        assert!(
            !bad(Collective::Gather { root: 1 }, at(116, 100))
                && bad(Collective::Gather { root: 1 }, at(100, 100))
        );
        let scatter = Collective::ReduceScatter(Operator::Sum);
        assert!(!bad(scatter, at(100, 116)) && bad(scatter, at(100, 100)) && !bad(scatter, at(100, 84)));
        // Off the root there is no second buffer to overlap.
        assert!(!bad(Collective::Broadcast { root: 0 }, at(100, 104)));
        assert!(!bad(Collective::Reduce { operator: Operator::Sum, root: 0 }, at(100, 104)));
    }

    #[test]
    fn a_reduce_scatter_and_an_all_gather_are_an_all_reduce() {
        // 12 elements over 3 ranks: the ring sums each part in the same order.
        let whole = Operation { count: 12, ..operation(Collective::AllReduce(Operator::Sum)) }.pieces(3);
        let scattered = operation(Collective::ReduceScatter(Operator::Sum)).pieces(3);
        let gathered = operation(Collective::AllGather).pieces(3);
        for ((whole, scattered), gathered) in whole.iter().zip(&scattered).zip(&gathered) {
            assert_eq!(whole.sources, scattered.sources);
            assert_eq!(whole.destinations, gathered.destinations);
            assert_eq!(scattered.destinations, gathered.sources);
            assert_eq!((whole.bytes, scattered.bytes), (16, 16));
        }
    }

    #[test]
    fn a_piece_is_summed_from_the_rank_behind_its_number() {
        let pieces = Operation { count: 5, ..operation(Collective::AllReduce(Operator::Sum)) }.pieces(4);
        // Two elements each, and one is left for the third; the fourth rank's piece is empty.
        assert_eq!(pieces.iter().map(|piece| piece.bytes).collect::<Vec<_>>(), [8, 8, 4]);
        assert_eq!(pieces[1].sources, [(2, 8), (3, 8), (0, 8), (1, 8)]);
    }
}
