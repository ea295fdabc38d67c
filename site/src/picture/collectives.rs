//! Pictures of what six collectives do to the buffers of four ranks, drawn from a definition of each collective.

use std::collections::BTreeSet;

use svg::node::element::Group;

use chart::card::{
    Card, GREEN, MARGIN, ORANGE, PINK, SKY, SOFT, WIDTH, arrow, block, ending, rectangle, text,
};

/// The number of ranks, which is also the number of parts in a buffer.
const RANKS: usize = 4;
/// The rank that broadcasts and that receives the result of a reduce.
const ROOT: usize = 0;

/// The colors for the ranks' values and for sums.
pub(super) const COLORS: [&str; RANKS] = [SKY, ORANGE, GREEN, PINK];
pub(super) const SUM: &str = "#1f2a44";

/// The contents of one part of a buffer: the sum of these ranks' values for one part.
#[derive(Clone, Debug, PartialEq)]
struct Block {
    ranks: BTreeSet<usize>,
    part: usize,
}

/// The parts of all ranks' buffers; `None` is a part whose contents don't matter.
type Buffers = [[Option<Block>; RANKS]; RANKS];

#[derive(Clone, Copy, Debug)]
enum Operation {
    Broadcast,
    Reduce,
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
}

impl Operation {
    const ALL: [Self; 6] = [
        Self::Broadcast,
        Self::Reduce,
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
    ];

    /// Returns the name of the operation's picture.
    fn file(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
        }
    }

    /// Describes what the operation's picture shows.
    fn description(self) -> &'static str {
        match self {
            Self::Broadcast => "All ranks have the root's buffer.",
            Self::Reduce => "The root has the sums.",
            Self::AllReduce => "All ranks have the sums.",
            Self::AllGather => "All ranks have all shards.",
            Self::ReduceScatter => "Each rank has one part of the sums.",
            Self::AllToAll => "Rank r has part r from every rank.",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast from rank 0",
            Self::Reduce => "reduce to rank 0",
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
        }
    }

    /// Returns the buffers before the operation: either all ranks have four parts of their own, or only the root does,
    /// or each rank has one shard at its position.
    fn before(self) -> Buffers {
        buffers(|rank, part| match self {
            Self::Broadcast => (rank == ROOT).then(|| own(rank, part)),
            Self::AllGather => (rank == part).then(|| own(rank, part)),
            Self::Reduce | Self::AllReduce | Self::ReduceScatter | Self::AllToAll => Some(own(rank, part)),
        })
    }

    /// Returns the buffers after the operation.
    fn after(self, before: &Buffers) -> Buffers {
        buffers(|rank, part| match self {
            Self::Broadcast => before[ROOT][part].clone(),
            Self::Reduce => (rank == ROOT).then(|| sum(before, part)).flatten(),
            Self::AllReduce => sum(before, part),
            Self::AllGather => before[part][part].clone(),
            Self::ReduceScatter => (rank == part).then(|| sum(before, part)).flatten(),
            Self::AllToAll => before[part][rank].clone(),
        })
    }
}

fn buffers(block: impl Fn(usize, usize) -> Option<Block>) -> Buffers {
    std::array::from_fn(|rank| std::array::from_fn(|part| block(rank, part)))
}

fn own(rank: usize, part: usize) -> Block {
    Block { ranks: BTreeSet::from([rank]), part }
}

/// Returns the sum of one part over all ranks, if all ranks have it.
fn sum(buffers: &Buffers, part: usize) -> Option<Block> {
    let blocks: Option<Vec<&Block>> = buffers.iter().map(|buffer| buffer[part].as_ref()).collect();
    Some(Block { ranks: blocks?.iter().flat_map(|block| &block.ranks).copied().collect(), part })
}

const PANEL: f64 = (WIDTH - 2.0 * MARGIN) / 2.0;
const PANEL_HEIGHT: f64 = 264.0;
const TOP: f64 = 100.0;
const SIDE: (f64, f64) = (48.0, 38.0);
/// The distance from one block to the next.
const PITCH: (f64, f64) = (50.0, 46.0);

/// Draws all operations in one picture.
pub(super) fn draw() -> String {
    let words = Operation::ALL.map(|operation| format!(" {}: {}", operation.name(), operation.description()));
    let description = format!("Six small diagrams on four ranks, before and after.{}", words.concat());
    let height = TOP + 3.0 * PANEL_HEIGHT + 50.0;
    let mut card = Card::new("Six collectives, on four ranks", &description, height);
    for (index, operation) in Operation::ALL.into_iter().enumerate() {
        let at = (MARGIN + PANEL * (index % 2) as f64, TOP + PANEL_HEIGHT * (index / 2) as f64);
        card = card.add(panel(operation, at));
    }
    card.add(text(MARGIN, height - 36.0, LEGEND).set("fill", SOFT)).svg()
}

const LEGEND: &str = "Rows: the ranks' buffers. A to D: values of ranks 0 to 3. Σ: their sum. Digit: which part of the buffer. Dashed: undefined.";

/// Draws a picture of each operation, by its file name.
pub(super) fn draw_each() -> impl Iterator<Item = (String, String)> {
    Operation::ALL.into_iter().map(|operation| {
        let height = TOP + PANEL_HEIGHT + 30.0;
        let title = format!("Before and after: {}", operation.name());
        let card = Card::new(&title, operation.description(), height)
            .add(panel(operation, ((WIDTH - PANEL) / 2.0, TOP - 20.0)))
            .add(text(MARGIN, height - 24.0, LEGEND).set("fill", SOFT));
        (operation.file().to_owned(), card.svg())
    })
}

/// Draws one operation: its name, and the buffers before and after.
fn panel(operation: Operation, (x, y): (f64, f64)) -> Group {
    let before = operation.before();
    let after = operation.after(&before);
    let left = x + 70.0;
    let right = left + PITCH.0 * RANKS as f64 + 62.0;
    let middle = y + 34.0 + PITCH.1 * RANKS as f64 / 2.0;
    let mut group = Group::new()
        .add(text(left, y + 18.0, operation.name()).set("font-weight", "bold").set("font-size", 22))
        .add(arrow((right - 54.0, middle), (right - 12.0, middle)));
    for rank in 0..RANKS {
        let label = ending(left - 12.0, y + 34.0 + PITCH.1 * rank as f64 + 27.0, format!("rank {rank}"));
        group = group.add(label.set("fill", SOFT));
    }
    for (buffers, x) in [(before, left), (after, right)] {
        for (rank, buffer) in buffers.iter().enumerate() {
            for (part, block) in buffer.iter().enumerate() {
                let at = (x + PITCH.0 * part as f64, y + 34.0 + PITCH.1 * rank as f64);
                group = group.add(drawn(block.as_ref(), at));
            }
        }
    }
    group
}

fn drawn(content: Option<&Block>, at: (f64, f64)) -> Group {
    let Some(Block { ranks, part }) = content else {
        let frame = rectangle(at.0, at.1, SIDE.0, SIDE.1).set("rx", 4).set("fill", "none");
        return Group::new().add(frame.set("stroke", SOFT).set("stroke-dasharray", "3 4"));
    };
    match ranks.iter().collect::<Vec<_>>()[..] {
        [&rank] => block(at, SIDE, COLORS[rank], &format!("{}{part}", ["A", "B", "C", "D"][rank])),
        _ => block(at, SIDE, SUM, &format!("Σ{part}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(operation: Operation) -> Buffers {
        operation.after(&operation.before())
    }

    #[test]
    fn collectives_are_made_of_each_other() {
        let sums = after(Operation::AllReduce);
        assert_eq!(Operation::AllGather.after(&after(Operation::ReduceScatter)), sums);
        assert_eq!(Operation::Broadcast.after(&after(Operation::Reduce)), sums);
        assert!(sums.iter().flatten().all(|sum| sum.as_ref().is_some_and(|sum| sum.ranks.len() == RANKS)));
    }

    #[test]
    fn two_all_to_alls_cancel_out() {
        let before = Operation::AllToAll.before();
        assert_ne!(after(Operation::AllToAll), before);
        assert_eq!(Operation::AllToAll.after(&after(Operation::AllToAll)), before);
    }

    #[test]
    fn only_the_root_has_what_is_reduced_to_it() {
        let reduced = after(Operation::Reduce);
        for (rank, buffer) in reduced.iter().enumerate() {
            assert!(buffer.iter().all(|part| part.is_some() == (rank == ROOT)), "rank {rank}");
        }
    }
}
