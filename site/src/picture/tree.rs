//! A picture of NCCL's double binary tree: two trees over all ranks, each of which carries half of the bytes.
//!
//! The rules come from NCCL's `src/graph/trees.cc`. See also Sanders, Speck, and Träff, "Two-tree algorithms for full
//! bandwidth broadcast, reduction and scan" (2009).

use svg::node::element::{Circle, Group};

use chart::card::{BLUE, Card, INK, MARGIN, SOFT, WIDTH, arrow, centered, round, text};

const RANKS: usize = 8;

/// The parent of each rank; the root has none.
type Tree = Vec<Option<usize>>;

/// Builds the first tree. A rank's parent is the rank with its lowest set bit moved up by one position, or with that
/// bit cleared if the result exceeds the last rank.
fn first(ranks: usize) -> Tree {
    (0..ranks)
        .map(|rank| {
            let without = rank & rank.checked_sub(1)?;
            let parent = without | (rank - without) << 1;
            Some(if parent < ranks { parent } else { without })
        })
        .collect()
}

/// Builds the second tree: the first tree mirrored or, for an odd number of ranks, shifted by one.
fn second(ranks: usize) -> Tree {
    let tree = first(ranks);
    let is_even = ranks.is_multiple_of(2);
    let from = |rank: usize| if is_even { ranks - 1 - rank } else { (rank + ranks - 1) % ranks };
    let to = |rank: usize| if is_even { ranks - 1 - rank } else { (rank + 1) % ranks };
    (0..ranks).map(|rank| tree[from(rank)].map(to)).collect()
}

fn is_leaf(tree: &Tree, rank: usize) -> bool {
    !tree.contains(&Some(rank))
}

fn depth(tree: &Tree, rank: usize) -> usize {
    std::iter::successors(tree[rank], |&parent| tree[parent]).count()
}

const TOP: f64 = 180.0;
const LEVEL: f64 = 108.0;
const RADIUS: f64 = 27.0;
const HALF: f64 = (WIDTH - 2.0 * MARGIN) / 2.0;

/// Draws the picture.
pub(super) fn draw() -> String {
    let trees = [("first half of the bytes", first(RANKS)), ("second half of the bytes", second(RANKS))];
    let leaves = trees.each_ref().map(|(_, tree)| leaves(tree));
    let description = format!(
        "Two trees over ranks 0 to 7, each for half of the bytes. In the first tree, rank 0 is the root and the leaves are {}; the \
         second tree is its mirror image, with rank 7 as the root and the leaves {}. Each rank is a leaf in one of the two trees.",
        leaves[0], leaves[1]
    );
    let deepest = trees.iter().flat_map(|(_, tree)| (0..RANKS).map(|rank| depth(tree, rank))).max();
    let bottom = TOP + LEVEL * deepest.unwrap_or_default() as f64 + RADIUS;
    let mut card = Card::new(
        "NCCL's two trees over eight ranks: a rank that adds in one is a leaf in the other",
        &description,
        bottom + 138.0,
    );
    for ((index, (name, tree)), leaves) in trees.iter().enumerate().zip(&leaves) {
        let left = MARGIN + HALF * index as f64;
        let middle = left + HALF / 2.0;
        card = card
            .add(centered(middle, 112.0, *name).set("font-weight", "bold").set("font-size", 22))
            .add(centered(middle, bottom + 48.0, format!("leaves: {leaves}")))
            .add(drawn(tree, left));
    }
    let legend = bottom + 100.0;
    card.add(node((MARGIN + 14.0, legend - 6.0), 13.0, false))
        .add(text(MARGIN + 38.0, legend, "adds what its children send, and passes it up"))
        .add(node((MARGIN + 470.0, legend - 6.0), 13.0, true))
        .add(text(MARGIN + 494.0, legend, "leaf: only sends"))
        .add(text(MARGIN + 680.0, legend, "The root's sum goes down the same way.").set("fill", SOFT))
        .svg()
}

fn leaves(tree: &Tree) -> String {
    let leaves: Vec<String> =
        (0..RANKS).filter(|&rank| is_leaf(tree, rank)).map(|rank| rank.to_string()).collect();
    leaves.join(", ")
}

/// Draws a tree with its ranks from left to right, so that no edges cross.
fn drawn(tree: &Tree, left: f64) -> Group {
    let pitch = (HALF - 2.0 * RADIUS - 40.0) / (RANKS - 1) as f64;
    let place =
        |rank: usize| (left + RADIUS + 20.0 + pitch * rank as f64, TOP + LEVEL * depth(tree, rank) as f64);
    let mut group = Group::new();
    for rank in 0..RANKS {
        let at = place(rank);
        if let Some(parent) = tree[rank] {
            let to = place(parent);
            let length = (to.0 - at.0).hypot(to.1 - at.1);
            let on_rim = |from: (f64, f64), to: (f64, f64), off: f64| {
                (from.0 + (to.0 - from.0) / length * off, from.1 + (to.1 - from.1) / length * off)
            };
            group = group.add(arrow(on_rim(at, to, RADIUS), on_rim(to, at, RADIUS + 3.0)));
        }
        let ink = if is_leaf(tree, rank) { INK } else { "#ffffff" };
        let number = centered(at.0, at.1 + 8.0, rank.to_string()).set("fill", ink);
        group = group
            .add(node(at, RADIUS, is_leaf(tree, rank)))
            .add(number.set("font-size", 24).set("font-weight", "bold"));
    }
    group
}

fn node(at: (f64, f64), radius: f64, is_leaf: bool) -> Circle {
    let fill = if is_leaf { "#ffffff" } else { BLUE };
    let circle = Circle::new().set("cx", round(at.0)).set("cy", round(at.1)).set("r", radius);
    circle.set("fill", fill).set("stroke", BLUE).set("stroke-width", 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_binary_trees_over_all_ranks() {
        for ranks in 1..70 {
            for tree in [first(ranks), second(ranks)] {
                assert_eq!(tree.iter().filter(|parent| parent.is_none()).count(), 1, "{ranks}: {tree:?}");
                for rank in 0..ranks {
                    let up = std::iter::successors(Some(rank), |&at| tree[at]).take(ranks + 1);
                    assert!(up.count() <= ranks, "{ranks}: a cycle through {rank}");
                    assert!(
                        tree.iter().filter(|&&parent| parent == Some(rank)).count() <= 2,
                        "{ranks}: {tree:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn each_rank_adds_in_at_most_one_of_them() {
        for ranks in 2..70 {
            let trees = [first(ranks), second(ranks)];
            for rank in 0..ranks {
                let inner = trees.iter().filter(|tree| tree[rank].is_some() && !is_leaf(tree, rank)).count();
                assert!(inner <= 1, "{ranks}: rank {rank} is inside of both");
            }
        }
        let trees = [first(RANKS), second(RANKS)];
        for rank in 0..RANKS {
            let leaf_in = trees.iter().filter(|tree| is_leaf(tree, rank)).count();
            assert_eq!(leaf_in, 1, "rank {rank}");
        }
    }

    /// The expected trees come from comments in NCCL's source.
    #[test]
    fn twelve_ranks_are_arranged_as_in_nccl() {
        let some =
            |parents: [usize; 12]| -> Tree { parents.iter().map(|&p| (p < 12).then_some(p)).collect() };
        assert_eq!(first(12), some([12, 2, 4, 2, 8, 6, 4, 6, 0, 10, 8, 10]));
        assert_eq!(second(12), some([1, 3, 1, 11, 5, 7, 5, 3, 9, 7, 9, 12]));
    }
}
