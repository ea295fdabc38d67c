//! Collectives: their arguments, how much each rank contributes and receives, and how buffers may overlap.

use super::scale::Scale;
use virtual_gpu::time::choice::Enabled;
use virtual_gpu::time::preset::Preset;
use virtual_gpu::time::trace::Label;
use virtual_gpu::time::tuning::{self, Choice, Function, World};
use virtual_gpu_core::handle::Rank;
use virtual_gpu_machine::reduction::{DataType, Operator};

/// A collective operation. `R` is the type of its root: the `i32` that C code passes, or a [`Rank`] once it has been
/// checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective<R = Rank> {
    /// Every rank gets the reduction of all ranks' buffers.
    AllReduce(Operator),
    /// Every rank gets the root's buffer.
    Broadcast {
        /// The rank whose buffer is sent.
        root: R,
    },
    /// The root gets the reduction of all ranks' buffers.
    Reduce {
        /// How the buffers are reduced.
        operator: Operator,
        /// The rank that gets the result.
        root: R,
    },
    /// Every rank gets all ranks' buffers, in rank order.
    AllGather,
    /// Every rank gets its part of the reduction of all ranks' buffers.
    ReduceScatter(Operator),
    /// Every rank gets its part of each rank's buffer, in rank order.
    AllToAll,
    /// The root gets all ranks' buffers, in rank order.
    Gather {
        /// The rank that gets the buffers.
        root: R,
    },
    /// Every rank gets its part of the root's buffer.
    Scatter {
        /// The rank whose buffer is sent.
        root: R,
    },
}

/// The arguments that all ranks in a call must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<R = Rank> {
    /// The operation, with its operator or root.
    pub collective: Collective<R>,
    /// The number of elements, as the C function counts them: the elements in one rank's part if a buffer has a part
    /// for each rank, or in the entire buffer otherwise.
    pub count: u64,
    /// The type of the elements.
    pub data_type: DataType,
}

/// How NCCL runs a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plan {
    /// The algorithm and protocol, or `None` if the collective consists of sends and receives.
    pub(crate) choice: Option<Choice>,
    /// How long the collective takes after all ranks are ready.
    pub(crate) nanoseconds: u64,
}

/// The device addresses of a rank's buffers, and the factor that its data is multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// The buffer that the rank sends.
    pub send: u64,
    /// The buffer for the rank's result.
    pub receive: u64,
    /// The scalar of an operator that the program created.
    pub scale: Option<Scale>,
}

impl Plan {
    /// Returns the label for one rank's part in a trace.
    pub(crate) fn label(&self, operation: &Operation, rank: Rank, world_size: usize) -> Label {
        let bytes = operation.large_side(world_size);
        let label = Label::new("collective", operation.function())
            .with("rank", rank.0)
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

impl Operation<i32> {
    /// Returns the operation with a root that is known to exist.
    ///
    /// # Errors
    /// Returns the root if a communicator of `world_size` ranks has no such rank.
    pub(crate) fn checked(self, world_size: usize) -> Result<Operation, i32> {
        let checked = |root| Rank::checked(root, world_size).ok_or(root);
        let collective = match self.collective {
            Collective::AllReduce(operator) => Collective::AllReduce(operator),
            Collective::Broadcast { root } => Collective::Broadcast { root: checked(root)? },
            Collective::Reduce { operator, root } => Collective::Reduce { operator, root: checked(root)? },
            Collective::AllGather => Collective::AllGather,
            Collective::ReduceScatter(operator) => Collective::ReduceScatter(operator),
            Collective::AllToAll => Collective::AllToAll,
            Collective::Gather { root } => Collective::Gather { root: checked(root)? },
            Collective::Scatter { root } => Collective::Scatter { root: checked(root)? },
        };
        Ok(Operation { collective, count: self.count, data_type: self.data_type })
    }
}

impl<R> Operation<R> {
    /// Returns the name of the C function.
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
}

impl Operation {
    pub(crate) fn root(&self) -> Option<Rank> {
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

    /// Returns the size of `count` elements in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.data_type.size())
    }

    /// Returns the number of bytes that `rank` sends, or `None` if its send buffer is ignored.
    pub(crate) fn given(&self, rank: Rank, world_size: usize) -> Option<u64> {
        match self.collective {
            Collective::Broadcast { root } | Collective::Scatter { root } if root != rank => None,
            Collective::ReduceScatter(_) | Collective::AllToAll | Collective::Scatter { .. } => {
                Some(self.bytes().saturating_mul(world_size as u64))
            }
            _ => Some(self.bytes()),
        }
    }

    /// Returns the number of bytes that `rank` receives, or `None` if its receive buffer is ignored.
    pub(crate) fn got(&self, rank: Rank, world_size: usize) -> Option<u64> {
        match self.collective {
            Collective::Reduce { root, .. } | Collective::Gather { root } if root != rank => None,
            Collective::AllGather | Collective::AllToAll | Collective::Gather { .. } => {
                Some(self.bytes().saturating_mul(world_size as u64))
            }
            _ => Some(self.bytes()),
        }
    }

    /// Returns the size of the larger of a rank's two buffers in bytes.
    pub(crate) fn large_side(&self, world_size: usize) -> u64 {
        match self.collective {
            Collective::AllReduce(_) | Collective::Broadcast { .. } | Collective::Reduce { .. } => {
                self.bytes()
            }
            _ => self.bytes().saturating_mul(world_size as u64),
        }
    }

    /// Returns the function's name in NCCL's tuning model, or `None` if the collective consists of sends and receives.
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

    /// Returns how NCCL runs the collective and how long that takes, according to its tuning model.
    ///
    /// # Errors
    /// Returns NCCL's message if `NCCL_ALGO` and `NCCL_PROTO` exclude everything that can run the collective.
    pub(crate) fn plan(&self, preset: &Preset, enabled: &Enabled, world: World) -> Result<Plan, String> {
        let bytes = self.large_side(world.ranks);
        let Some(function) = self.tuned() else {
            // A rank does not send its own part.
            let moved = bytes - bytes / world.ranks as u64;
            return Ok(Plan { choice: None, nanoseconds: tuning::point_to_point(preset, moved) });
        };
        let in_switch =
            self.operator().is_none_or(|operator| operator.is_reduced_in_switches(self.data_type));
        let choice = tuning::choose(preset, enabled, function, world, bytes, in_switch);
        let choice = choice.ok_or_else(|| enabled.none_left(function, &self.data_type.c_name()))?;
        Ok(Plan { choice: Some(choice), nanoseconds: choice.nanoseconds })
    }

    /// Returns a message if the buffers overlap in any way other than in place.
    pub(crate) fn overlap(&self, buffers: Buffers, rank: Rank, world_size: usize) -> Option<String> {
        let (given, got) = (self.given(rank, world_size)?, self.got(rank, world_size)?);
        let Buffers { send, receive, .. } = buffers;
        let part = rank.0 as u64 * self.bytes();
        let (in_place, rule) = match self.collective {
            Collective::AllGather | Collective::Gather { .. } => {
                (send == receive + part, "in place means the rank's own part of the receive buffer")
            }
            Collective::ReduceScatter(_) | Collective::Scatter { .. } => {
                (receive == send + part, "in place means the rank's own part of the send buffer")
            }
            Collective::AllToAll => (false, "it can't be done in place"),
            _ => (send == receive, "in place means exactly the same buffer"),
        };
        let apart = send + given <= receive || receive + got <= send;
        (!in_place && !apart).then(|| format!("{}: sendbuff and recvbuff overlap: {rule}", self.function()))
    }

    /// Splits the collective into pieces.
    ///
    /// An all-reduce has one piece per rank. Piece `c` is summed along the ring, from rank `c + 1` to rank `c`. So
    /// every rank gets the same bits, and the order is the same on every run.
    pub(crate) fn pieces(&self, ranks: usize, order: ReductionOrder) -> Vec<Piece> {
        let bytes = self.bytes();
        let after = |rank: Rank, steps: usize| Rank((rank.0 + steps) % ranks);
        // All ranks, in the order in which their values are combined.
        let ring = |last: Rank, at: u64| match order {
            ReductionOrder::Ring => (1..=ranks).map(|steps| (after(last, steps), at)).collect(),
            ReductionOrder::Chain => (0..ranks).rev().map(|rank| (Rank(rank), at)).collect(),
            ReductionOrder::Switch => Rank::all(ranks).map(|rank| (rank, at)).collect(),
        };
        let everywhere = |at: u64| Rank::all(ranks).map(|rank| (rank, at)).collect();
        match self.collective {
            Collective::Broadcast { root } => {
                vec![Piece { sources: vec![(root, 0)], destinations: everywhere(0), bytes }]
            }
            Collective::AllGather => Rank::all(ranks)
                .map(|rank| Piece {
                    sources: vec![(rank, 0)],
                    destinations: everywhere(rank.0 as u64 * bytes),
                    bytes,
                })
                .collect(),
            Collective::AllReduce(_) => {
                let most = self.count.div_ceil(ranks as u64) * self.data_type.size();
                let starts =
                    Rank::all(ranks).map(|last| (last, last.0 as u64 * most)).filter(|&(_, at)| at < bytes);
                let piece = |(last, at): (Rank, u64)| Piece {
                    sources: ring(last, at),
                    destinations: everywhere(at),
                    bytes: most.min(bytes - at),
                };
                starts.map(piece).collect()
            }
            Collective::ReduceScatter(_) => Rank::all(ranks)
                .map(|rank| Piece {
                    sources: ring(rank, rank.0 as u64 * bytes),
                    destinations: vec![(rank, 0)],
                    bytes,
                })
                .collect(),
            Collective::Reduce { root, .. } => {
                vec![Piece { sources: ring(root, 0), destinations: vec![(root, 0)], bytes }]
            }
            Collective::AllToAll => {
                let pairs = Rank::all(ranks).flat_map(|from| Rank::all(ranks).map(move |to| (from, to)));
                let piece = |(from, to): (Rank, Rank)| Piece {
                    sources: vec![(from, to.0 as u64 * bytes)],
                    destinations: vec![(to, from.0 as u64 * bytes)],
                    bytes,
                };
                pairs.map(piece).collect()
            }
            Collective::Gather { root } => Rank::all(ranks)
                .map(|rank| Piece {
                    sources: vec![(rank, 0)],
                    destinations: vec![(root, rank.0 as u64 * bytes)],
                    bytes,
                })
                .collect(),
            Collective::Scatter { root } => Rank::all(ranks)
                .map(|rank| Piece {
                    sources: vec![(root, rank.0 as u64 * bytes)],
                    destinations: vec![(rank, 0)],
                    bytes,
                })
                .collect(),
        }
    }
}

/// The order in which the ranks' values are combined. NCCL documents none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReductionOrder {
    /// Around the ring, from the rank after the one that has the result first.
    Ring,
    /// Along the chain that a tree is within a node, from the last rank to the first.
    Chain,
    /// All at once in an NVLink switch, here from the first rank to the last.
    Switch,
}

/// The bytes in a collective that are computed in the same way: from the same ranks' bytes, combined in the same order,
/// for the same receiving ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The ranks to read from, each with the piece's offset in its send buffer.
    pub(crate) sources: Vec<(Rank, u64)>,
    /// The ranks to write to, each with the piece's offset in its receive buffer.
    pub(crate) destinations: Vec<(Rank, u64)>,
    /// The piece's length.
    pub(crate) bytes: u64,
}

impl std::fmt::Display for Operation {
    /// Formats as `ncclReduce(count 10, float32, sum, root 2)`.
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
        let bad = |collective, buffers| operation(collective).overlap(buffers, Rank(1), 3).is_some();
        let sum = Collective::AllReduce(Operator::Sum);
        assert!(!bad(sum, at(100, 100)) && !bad(sum, at(100, 116)) && bad(sum, at(100, 104)));
        // Rank 1 of 3 sends 16 bytes and receives 48; its own part starts at byte 16.
        let gather = Collective::AllGather;
        assert!(!bad(gather, at(116, 100)) && bad(gather, at(100, 100)) && !bad(gather, at(148, 100)));
        assert!(bad(Collective::AllToAll, at(100, 100)) && !bad(Collective::AllToAll, at(100, 148)));
        assert!(
            !bad(Collective::Gather { root: Rank(1) }, at(116, 100))
                && bad(Collective::Gather { root: Rank(1) }, at(100, 100))
        );
        let scatter = Collective::ReduceScatter(Operator::Sum);
        assert!(!bad(scatter, at(100, 116)) && bad(scatter, at(100, 100)) && !bad(scatter, at(100, 84)));
        // Ranks other than the root have no second buffer that could overlap.
        assert!(!bad(Collective::Broadcast { root: Rank(0) }, at(100, 104)));
        assert!(!bad(Collective::Reduce { operator: Operator::Sum, root: Rank(0) }, at(100, 104)));
    }

    #[test]
    fn a_reduce_scatter_and_an_all_gather_are_an_all_reduce() {
        // With 12 elements across 3 ranks, the ring sums each part in the same order.
        let whole = Operation { count: 12, ..operation(Collective::AllReduce(Operator::Sum)) }
            .pieces(3, ReductionOrder::Ring);
        let scattered = operation(Collective::ReduceScatter(Operator::Sum)).pieces(3, ReductionOrder::Ring);
        let gathered = operation(Collective::AllGather).pieces(3, ReductionOrder::Ring);
        for ((whole, scattered), gathered) in whole.iter().zip(&scattered).zip(&gathered) {
            assert_eq!(whole.sources, scattered.sources);
            assert_eq!(whole.destinations, gathered.destinations);
            assert_eq!(scattered.destinations, gathered.sources);
            assert_eq!((whole.bytes, scattered.bytes), (16, 16));
        }
    }

    #[test]
    fn a_piece_is_summed_from_the_rank_after_its_number() {
        let pieces = Operation { count: 5, ..operation(Collective::AllReduce(Operator::Sum)) }
            .pieces(4, ReductionOrder::Ring);
        // The first two pieces have two elements each, the third piece has the last element, and the fourth piece is
        // empty.
        assert_eq!(pieces.iter().map(|piece| piece.bytes).collect::<Vec<_>>(), [8, 8, 4]);
        let sources = pieces[1].sources.iter().map(|&(rank, at)| (rank.0, at));
        assert_eq!(sources.collect::<Vec<_>>(), [(2, 8), (3, 8), (0, 8), (1, 8)]);
    }
}
