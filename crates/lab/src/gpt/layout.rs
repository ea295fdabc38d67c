//! The layers of a small GPT, and the positions of their parameters in a flat buffer.

use std::ops::Range;

use anyhow::ensure;

use crate::random::SplitMix64;

/// The shape of a GPT whose layers are, in this order: the embedding, then attention and MLP of each block, then the
/// output. Linear layers have no biases, and norms have a gain.
///
/// | layer | its parameters, row-major |
/// |---|---|
/// | embedding | `vocabulary` × `width` for tokens, then `context` × `width` for positions |
/// | attention | gain; `width` × (for each head: query, key, value); (for each head: value) × `width` |
/// | MLP | gain; `width` × `hidden`; `hidden` × `width` |
/// | output | gain; `width` × `vocabulary` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GptShape {
    /// The number of different tokens.
    pub vocabulary: usize,
    /// The number of tokens in a sequence.
    pub context: usize,
    /// The number of values per token between layers.
    pub width: usize,
    /// The number of heads of an attention.
    pub heads: usize,
    /// The number of values per head.
    pub head_width: usize,
    /// The number of hidden units of an MLP.
    pub hidden: usize,
    /// The number of blocks.
    pub blocks: usize,
}

/// What a layer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Embedding,
    Attention,
    Mlp,
    Output,
}

impl GptShape {
    /// Returns the number of layers: two per block, the embedding, and the output.
    pub fn layers(&self) -> usize {
        2 * self.blocks + 2
    }

    /// Returns the name of a layer, such as `MLP 0`.
    pub fn name(&self, layer: usize) -> String {
        match self.kind(layer) {
            Kind::Embedding => "embedding".to_owned(),
            Kind::Attention => format!("attention {}", (layer - 1) / 2),
            Kind::Mlp => format!("MLP {}", (layer - 1) / 2),
            Kind::Output => "output".to_owned(),
        }
    }

    /// Returns the range of a layer's parameters in the flat buffer.
    pub fn range(&self, layer: usize) -> Range<usize> {
        let before: usize = (0..layer).map(|layer| self.len(layer)).sum();
        before..before + self.len(layer)
    }

    /// Returns the range of the parameters of several layers.
    pub fn range_of(&self, layers: Range<usize>) -> Range<usize> {
        self.range(layers.start).start..self.range(layers.end).start
    }

    /// Returns the number of all parameters.
    pub fn parameters(&self) -> usize {
        self.range(self.layers()).start
    }

    /// Returns the shape of one rank's part of the model, if `ranks` ranks divide the heads and the hidden units of
    /// every block. Every rank has the embedding, the gains, and the output.
    ///
    /// # Errors
    /// Fails if the number of ranks does not divide both.
    pub fn part(&self, ranks: usize) -> anyhow::Result<Self> {
        let Self { heads, hidden, .. } = *self;
        ensure!(
            ranks > 0 && heads.is_multiple_of(ranks) && hidden.is_multiple_of(ranks),
            "{ranks} ranks can't divide {heads} heads and {hidden} hidden units"
        );
        Ok(Self { heads: heads / ranks, hidden: hidden / ranks, ..*self })
    }

    /// Returns each rank's part of the parameters, in rank order: see [`part`](Self::part).
    ///
    /// # Errors
    /// Fails like [`part`](Self::part), or if `parameters` has another length.
    pub fn split(&self, parameters: &[f32], ranks: usize) -> anyhow::Result<Vec<Vec<f32>>> {
        let (own, all) = (parameters.len(), self.parameters());
        ensure!(own == all, "{own} parameters, but the model has {all}");
        let parts = (0..ranks).map(|rank| {
            let places = self.places(rank, ranks)?;
            Ok(places.into_iter().map(|place| parameters[place]).collect())
        });
        parts.collect()
    }

    /// Returns the parameters whose parts these are: the inverse of [`split`](Self::split). What every part has is
    /// taken from the last one.
    ///
    /// # Errors
    /// Fails like [`part`](Self::part), or if a part has another length.
    pub fn merge(&self, parts: &[Vec<f32>]) -> anyhow::Result<Vec<f32>> {
        let mut parameters = vec![0.0; self.parameters()];
        for (rank, part) in parts.iter().enumerate() {
            let places = self.places(rank, parts.len())?;
            let (own, all) = (part.len(), places.len());
            ensure!(own == all, "part {rank} has {own} parameters, expected {all}");
            places.into_iter().zip(part).for_each(|(place, value)| parameters[place] = *value);
        }
        Ok(parameters)
    }

    /// Returns initial parameters, which depend only on the seed. Gains are 1, and the other parameters are uniform.
    /// What a block adds starts small, so that the values keep their scale from block to block.
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        let mut random = SplitMix64::new(seed);
        let mut parameters = Vec::with_capacity(self.parameters());
        for layer in 0..self.layers() {
            let kind = self.kind(layer);
            for (index, len) in self.lens(layer).into_iter().enumerate() {
                let bound = match (kind, index) {
                    (Kind::Embedding, _) => 0.5,
                    (_, 0) => 0.0,
                    (_, 1) => (3.0 / self.width as f32).sqrt(),
                    (_, _) => (3.0 / (len / self.width) as f32).sqrt() / (2.0 * self.blocks as f32).sqrt(),
                };
                let is_gain = kind != Kind::Embedding && index == 0;
                let center = if is_gain { 1.0 } else { 0.0 };
                parameters.extend((0..len).map(|_| center + random.uniform(-bound, bound)));
            }
        }
        parameters
    }

    pub(super) fn kind(&self, layer: usize) -> Kind {
        match layer {
            0 => Kind::Embedding,
            _ if layer > 2 * self.blocks => Kind::Output,
            _ if layer % 2 == 1 => Kind::Attention,
            _ => Kind::Mlp,
        }
    }

    /// Returns the number of values of all heads of a token.
    pub(super) fn attended(&self) -> usize {
        self.heads * self.head_width
    }

    /// Returns the lengths of a layer's matrices. A layer after the embedding has a gain and one or two matrices: the
    /// first has `width` rows, and the second `width` columns.
    pub(super) fn lens(&self, layer: usize) -> [usize; 3] {
        let Self { vocabulary, context, width, .. } = *self;
        let (wide, inner) = (self.wide(layer), self.inner(layer));
        match self.kind(layer) {
            Kind::Embedding => [vocabulary * width, context * width, 0],
            Kind::Attention | Kind::Mlp | Kind::Output => [width, width * wide, inner * width],
        }
    }

    /// Returns the number of values per token that a layer's first matrix computes.
    pub(super) fn wide(&self, layer: usize) -> usize {
        match self.kind(layer) {
            Kind::Embedding => 0,
            Kind::Attention => 3 * self.attended(),
            Kind::Mlp => self.hidden,
            Kind::Output => self.vocabulary,
        }
    }

    /// Returns the number of values per token that a layer's second matrix takes.
    pub(super) fn inner(&self, layer: usize) -> usize {
        match self.kind(layer) {
            Kind::Attention => self.attended(),
            Kind::Mlp => self.hidden,
            Kind::Embedding | Kind::Output => 0,
        }
    }

    fn len(&self, layer: usize) -> usize {
        if layer < self.layers() { self.lens(layer).iter().sum() } else { 0 }
    }

    /// Returns the index in the whole model of each parameter of a rank's part.
    fn places(&self, rank: usize, ranks: usize) -> anyhow::Result<Vec<usize>> {
        let part = self.part(ranks)?;
        let mut places = Vec::with_capacity(part.parameters());
        for layer in 0..self.layers() {
            let whole = self.range(layer);
            if part.len(layer) == whole.len() {
                places.extend(whole);
                continue;
            }
            let [gain, first, _] = self.lens(layer);
            let (wide, own_wide) = (self.wide(layer), part.wide(layer));
            places.extend(whole.start..whole.start + gain);
            for row in 0..self.width {
                let start = whole.start + gain + row * wide + rank * own_wide;
                places.extend(start..start + own_wide);
            }
            let own_second = part.inner(layer) * self.width;
            let start = whole.start + gain + first + rank * own_second;
            places.extend(start..start + own_second);
        }
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: GptShape =
        GptShape { vocabulary: 5, context: 3, width: 4, heads: 6, head_width: 2, hidden: 12, blocks: 2 };

    #[test]
    fn layers_follow_each_other() {
        let lens: Vec<usize> = (0..SHAPE.layers()).map(|layer| SHAPE.range(layer).len()).collect();
        assert_eq!(lens, [32, 196, 100, 196, 100, 24]);
        assert_eq!(SHAPE.range(2), 228..328);
        assert_eq!(SHAPE.range_of(1..3), 32..328);
        assert_eq!((SHAPE.range_of(3..6).end, SHAPE.initial(1).len()), (648, SHAPE.parameters()));
        assert_eq!(SHAPE.name(4), "MLP 1");
    }

    #[test]
    fn parts_have_their_columns_and_rows() {
        let parameters: Vec<f32> = (0..SHAPE.parameters()).map(|index| index as f32).collect();
        let parts = SHAPE.split(&parameters, 3).unwrap();
        let part = SHAPE.part(3).unwrap();
        assert!(parts.iter().all(|own| own.len() == part.parameters()));
        // The second part's first attention: the gain, then columns 12 to 23 of 36, then rows 4 to 7 of 12.
        let own = &parts[1][part.range(1)];
        assert_eq!(own[..6], [32.0, 33.0, 34.0, 35.0, 48.0, 49.0]);
        assert_eq!(own[4 + 12], 36.0 + 36.0 + 12.0);
        assert_eq!(own[4 + 48], 36.0 + 144.0 + 16.0);
        assert_eq!(SHAPE.merge(&parts).unwrap(), parameters);
        assert!(SHAPE.split(&parameters, 4).is_err() && SHAPE.split(&parameters[1..], 3).is_err());
    }
}
