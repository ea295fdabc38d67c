//! The text that a GPT is trained on, in batches.

use std::ops::Range;

use crate::random::SplitMix64;

/// Four sonnets by William Shakespeare; `data/README.md` has their source.
const SONNETS: &str = include_str!("../../data/sonnets.txt");

/// A text as tokens: each token is the number of a character in the alphabet of the text.
#[derive(Clone, Debug)]
pub struct Text {
    /// The characters that occur, in ascending order.
    pub alphabet: Vec<char>,
    tokens: Vec<u32>,
}

/// Sequences of the same length, in host memory. The target of each token is the token after it in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The number of tokens in each sequence.
    pub context: usize,
    /// The tokens of one sequence after another.
    pub tokens: Vec<u32>,
    /// The target of each token.
    pub targets: Vec<u32>,
}

impl Text {
    /// Returns four sonnets by William Shakespeare.
    pub fn sonnets() -> Self {
        let mut alphabet: Vec<char> = SONNETS.chars().collect();
        alphabet.sort_unstable();
        alphabet.dedup();
        let token = |character| alphabet.binary_search(&character).unwrap_or_default() as u32;
        let tokens = SONNETS.chars().map(token).collect();
        Self { alphabet, tokens }
    }

    /// Returns a batch of sequences, which begin at random places of the text. It depends only on the arguments.
    ///
    /// # Panics
    /// Panics if the text has no more than `context` characters.
    pub fn batch(&self, seed: u64, sequences: usize, context: usize) -> Batch {
        let mut random = SplitMix64::new(seed);
        let (mut tokens, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..sequences {
            let start = random.below(self.tokens.len() - context);
            tokens.extend(&self.tokens[start..start + context]);
            targets.extend(&self.tokens[start + 1..start + 1 + context]);
        }
        Batch { context, tokens, targets }
    }
}

impl Batch {
    /// Returns the number of sequences.
    pub fn len(&self) -> usize {
        self.tokens.len() / self.context.max(1)
    }

    /// Returns whether there are no sequences.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a batch of these sequences.
    ///
    /// # Panics
    /// Panics if there are no such sequences.
    pub fn sequences(&self, range: Range<usize>) -> Self {
        let range = range.start * self.context..range.end * self.context;
        Self {
            context: self.context,
            tokens: self.tokens[range.clone()].to_vec(),
            targets: self.targets[range].to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_next_characters() {
        let text = Text::sonnets();
        assert!(text.alphabet.len() <= 64 && text.tokens.len() > 2000);
        let batch = text.batch(3, 5, 16);
        assert_eq!((batch.len(), batch.tokens.len()), (5, 80));
        for sequence in 0..5 {
            let one = batch.sequences(sequence..sequence + 1);
            assert_eq!(one.tokens[1..], one.targets[..15]);
        }
        assert_ne!(batch, text.batch(4, 5, 16));
    }
}
