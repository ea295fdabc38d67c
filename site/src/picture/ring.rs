//! A picture of an all-reduce around a ring: NCCL's algorithm, simulated with sets of ranks as values.

use anyhow::ensure;
use svg::node::element::Group;

use chart::card::{
    Card, FONT, INK, MARGIN, SOFT, WIDTH, arrow, block, centered, ending, line, rectangle, text,
};

const RANKS: usize = 4;

/// The color of a chunk that contains the values of one, two, three, or all four ranks.
pub(super) const COLORS: [&str; RANKS] = ["#dcebf7", "#9ecae1", "#5aa2d0", "#08457e"];

/// Which ranks' values are in each chunk of each rank, as bit sets.
type Chunks = Vec<Vec<u32>>;

/// A message in a step: rank `from` sends `chunk` to the next rank.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Message {
    from: usize,
    chunk: usize,
}

/// The messages in a step, and the ranks' chunks after it.
struct Step {
    messages: Vec<Message>,
    chunks: Chunks,
}

/// Simulates the 2(n − 1) steps of an all-reduce on `n` ranks: first a reduce-scatter, which leaves the sum of chunk
/// `r` on rank `r`, and then an all-gather.
///
/// # Errors
/// Fails if a value would be added twice, or if a rank lacks a sum at the end.
fn play(n: usize) -> anyhow::Result<Vec<Step>> {
    let mut chunks: Chunks = (0..n).map(|rank| vec![1 << rank; n]).collect();
    let mut steps = Vec::new();
    for step in 0..2 * (n - 1) {
        let adds = step < n - 1;
        let messages: Vec<Message> =
            (0..n).map(|from| Message { from, chunk: (2 * n + from - 1 - step) % n }).collect();
        let sent: Vec<u32> = messages.iter().map(|message| chunks[message.from][message.chunk]).collect();
        for (message, sent) in messages.iter().zip(sent) {
            let received = &mut chunks[(message.from + 1) % n][message.chunk];
            ensure!(!adds || *received & sent == 0, "step {step}: {message:?} would be added twice");
            *received = if adds { *received | sent } else { sent };
        }
        steps.push(Step { messages, chunks: chunks.clone() });
    }
    let all = (1 << n) - 1;
    ensure!(chunks.iter().flatten().all(|&ranks| ranks == all), "not every rank has all sums: {chunks:?}");
    Ok(steps)
}

const LEFT: f64 = 150.0;
const TOP: f64 = 190.0;
const CHUNK: (f64, f64) = (92.0, 28.0);
const ROW: f64 = CHUNK.1 * RANKS as f64 + 40.0;
const COLUMNS: usize = 2 * (RANKS - 1) + 1;
const COLUMN: f64 = (WIDTH - MARGIN - LEFT - CHUNK.0) / (COLUMNS - 1) as f64;
const BOTTOM: f64 = TOP + ROW * RANKS as f64 - 40.0;

/// Draws the picture.
///
/// # Errors
/// Returns any error from the algorithm.
pub(super) fn draw() -> anyhow::Result<String> {
    let description = "A grid with a row for each of four ranks, and a column for the start and for each of six steps. \
                       In every step, each rank sends one of its four chunks to the next rank, and the last rank sends \
                       to the first. In the first three steps, each rank adds the chunk that arrives; then each rank \
                       has one chunk with the sum over all four. In the next three steps, the finished chunks go around \
                       the ring, and every rank ends up with all of them.";
    let steps = play(RANKS)?;
    let mut card = Card::new("An all-reduce around a ring of four ranks", description, BOTTOM + 120.0);
    for (name, first) in [("reduce-scatter: add what arrives", 1), ("all-gather: keep what arrives", RANKS)] {
        let (from, to) = (x(first), x(first + RANKS - 2) + CHUNK.0);
        let y = 122.0;
        card = card
            .add(centered(f64::midpoint(from, to), y - 12.0, name).set("font-weight", "bold"))
            .add(line((from, y), (to, y)).set("stroke", INK).set("stroke-width", 3));
    }
    for column in 0..COLUMNS {
        let name = if column == 0 { "start".to_owned() } else { format!("step {column}") };
        card = card.add(centered(x(column) + CHUNK.0 / 2.0, 148.0, name));
    }
    let start: Chunks = (0..RANKS).map(|rank| vec![1 << rank; RANKS]).collect();
    for (rank, chunks) in start.iter().enumerate() {
        let label = text(MARGIN, y(rank, 0) + 2.0 * CHUNK.1 + 6.0, format!("rank {rank}"));
        card = card.add(label.set("font-weight", "bold"));
        for (chunk, letter) in ["a", "b", "c", "d"].into_iter().enumerate() {
            card = card.add(ending(LEFT - 12.0, middle(rank, chunk) + 6.0, letter).set("fill", SOFT));
        }
        card = card.add(cell(0, rank, chunks, None));
    }
    for (step, column) in steps.iter().zip(1..) {
        for message in &step.messages {
            let to = (message.from + 1) % RANKS;
            card = card.add(cell(column, to, &step.chunks[to], Some(message.chunk)));
        }
        for message in &step.messages {
            card = card.add(way(column, *message));
        }
    }
    Ok(card.add(legend(BOTTOM + 84.0)).svg())
}

fn x(column: usize) -> f64 {
    LEFT + COLUMN * column as f64
}

fn y(rank: usize, chunk: usize) -> f64 {
    TOP + ROW * rank as f64 + CHUNK.1 * chunk as f64
}

fn middle(rank: usize, chunk: usize) -> f64 {
    y(rank, chunk) + CHUNK.1 / 2.0
}

/// Draws a rank's chunks, with a frame around the chunk that has just arrived.
fn cell(column: usize, rank: usize, chunks: &[u32], came: Option<usize>) -> Group {
    let mut group = Group::new();
    for (chunk, &ranks) in chunks.iter().enumerate() {
        let parts: Vec<String> =
            (0..RANKS).filter(|rank| ranks >> rank & 1 == 1).map(|rank| rank.to_string()).collect();
        let color = COLORS[parts.len() - 1];
        group = group.add(block((x(column), y(rank, chunk)), CHUNK, color, &parts.join("+")));
    }
    let Some(chunk) = came else { return group };
    let frame = rectangle(x(column), y(rank, chunk), CHUNK.0, CHUNK.1).set("rx", 4).set("fill", "none");
    group.add(frame.set("stroke", INK).set("stroke-width", 4))
}

/// Draws the arrow for a message into `column`. The last rank's arrow leaves the picture at the bottom and reenters it
/// at the top.
fn way(column: usize, message: Message) -> Group {
    let from = (x(column - 1) + CHUNK.0 + 3.0, middle(message.from, message.chunk));
    let to = (x(column) - 4.0, middle((message.from + 1) % RANKS, message.chunk));
    if message.from + 1 < RANKS {
        return arrow(from, to);
    }
    let half = (to.0 - from.0) / 2.0;
    let (below, above) = (BOTTOM + 26.0, TOP - 26.0);
    Group::new().add(arrow(from, (from.0 + half, below))).add(arrow((to.0 - half, above), to))
}

fn legend(y: f64) -> Group {
    let mut group = Group::new().add(text(MARGIN, y, "The sum of"));
    let mut x = MARGIN + 108.0;
    for (color, name) in COLORS.into_iter().zip(["one rank", "two ranks", "three ranks", "all four"]) {
        group = group
            .add(rectangle(x, y - FONT + 2.0, FONT, FONT).set("fill", color).set("stroke", INK))
            .add(text(x + 26.0, y, name));
        x += 50.0 + 9.0 * name.len() as f64;
    }
    let rest = "Thick frame: has just arrived. Rank 0 follows rank 3.";
    group.add(ending(WIDTH - MARGIN, y, rest).set("fill", SOFT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_all_reduce_takes_two_steps_per_other_rank_on_any_ring() {
        for n in 2..9 {
            let steps = play(n).unwrap();
            assert_eq!(steps.len(), 2 * (n - 1));
            assert!(steps.iter().all(|step| step.messages.len() == n));
        }
    }

    #[test]
    fn half_way_each_rank_has_the_sum_of_its_own_chunk() {
        let steps = play(RANKS).unwrap();
        for (rank, chunks) in steps[RANKS - 2].chunks.iter().enumerate() {
            let done: Vec<usize> = (0..RANKS).filter(|&chunk| chunks[chunk] == 0b1111).collect();
            assert_eq!(done, [rank]);
        }
    }
}
