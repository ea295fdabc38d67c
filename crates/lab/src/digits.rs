//! Handwritten digits for training and testing.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, ensure};
use cudarc::driver::{CudaSlice, CudaStream, CudaView};

use crate::random::SplitMix64;

/// The number of pixels in an image: 8 × 8.
pub const PIXELS: usize = 64;
/// The number of different digits.
pub const CLASSES: usize = 10;
/// The value of a full pixel in the file.
const FULL: u8 = 16;
/// The seed of the only shuffle, so that every rank, run, and machine gets the same samples in the same order.
const SEED: u64 = 20_240_607;
/// One in this many digits is kept for testing.
const TEST_SHARE: usize = 5;

/// Images and the digits they show, in host memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// The images, one after another, each as [`PIXELS`] values from 0 (empty) to 1 (full).
    pub pixels: Vec<f32>,
    /// The digit of each image, below [`CLASSES`].
    pub labels: Vec<u32>,
}

/// The training and test sets. No image is in both.
#[derive(Clone, Debug, PartialEq)]
pub struct Digits {
    /// 1,438 samples.
    pub train: Samples,
    /// 359 samples.
    pub test: Samples,
}

impl Digits {
    /// Loads the 1,797 digits in `data/digits.csv`, shuffles them with a fixed seed, and splits them. The last fifth is
    /// the test set.
    ///
    /// # Errors
    /// Fails if the file does not match the description in its README. The error names the line and the column.
    pub fn load() -> anyhow::Result<Self> {
        // A check trains in several worlds, but the file never changes, so it is parsed once.
        static LOADED: OnceLock<Digits> = OnceLock::new();
        if let Some(digits) = LOADED.get() {
            return Ok(digits.clone());
        }
        let digits = Self::read()?;
        Ok(LOADED.get_or_init(|| digits).clone())
    }

    fn read() -> anyhow::Result<Self> {
        let all = Samples::parse(include_str!("../data/digits.csv")).context("data/digits.csv")?;
        let mut order: Vec<usize> = (0..all.len()).collect();
        SplitMix64::new(SEED).shuffle(&mut order);
        let (train, test) = order.split_at(all.len() - all.len() / TEST_SHARE);
        Ok(Self { train: all.select(train), test: all.select(test) })
    }
}

impl Samples {
    /// Parses lines of 64 pixels from 0 to 16 and a digit, separated by commas.
    ///
    /// # Errors
    /// Fails if a value is not a number or out of range, or if a line does not have 65 values. The error names the line
    /// and the column, each counted from 1.
    pub fn parse(csv: &str) -> anyhow::Result<Self> {
        let mut samples = Self::default();
        for (line, text) in csv.lines().enumerate() {
            samples.push(text).with_context(|| format!("line {}", line + 1))?;
        }
        Ok(samples)
    }

    fn push(&mut self, line: &str) -> anyhow::Result<()> {
        // Every process of a check does this, in an unoptimized build, where `split` and `parse` take 25 ms for the file.
        let bytes = line.as_bytes();
        let (mut column, mut start, mut end) = (0, 0, 0);
        while end <= bytes.len() {
            if end == bytes.len() || bytes[end] == b',' {
                self.push_value(column, &line[start..end])?;
                column += 1;
                start = end + 1;
            }
            end += 1;
        }
        ensure!(column == PIXELS + 1, "{column} columns, expected {}", PIXELS + 1);
        Ok(())
    }

    /// Adds the value of a column, which is counted from 0.
    fn push_value(&mut self, column: usize, text: &str) -> anyhow::Result<()> {
        let value = match *text.as_bytes() {
            [ones @ b'0'..=b'9'] => ones - b'0',
            [b'1', ones @ b'0'..=b'9'] => 10 + ones - b'0',
            _ => u8::MAX,
        };
        let most = if column < PIXELS { FULL } else { CLASSES as u8 - 1 };
        ensure!(value <= most, "column {}: `{text}` is not a whole number from 0 to {most}", column + 1);
        if column < PIXELS {
            self.pixels.push(f32::from(value) / f32::from(FULL));
        } else {
            self.labels.push(value.into());
        }
        Ok(())
    }

    fn select(&self, indices: &[usize]) -> Self {
        let mut selected = Self::default();
        for &index in indices {
            selected.pixels.extend_from_slice(self.image(index));
            selected.labels.push(self.labels[index]);
        }
        selected
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the pixels of one image.
    ///
    /// # Panics
    /// Panics if there is no such image.
    pub fn image(&self, index: usize) -> &[f32] {
        &self.pixels[index * PIXELS..][..PIXELS]
    }

    /// Copies the samples to the stream's GPU.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn to_device(&self, stream: &Arc<CudaStream>) -> anyhow::Result<DeviceSamples> {
        let pixels = stream.clone_htod(&self.pixels).context("the pixels")?;
        let labels = stream.clone_htod(&self.labels).context("the labels")?;
        Ok(DeviceSamples { pixels, labels })
    }
}

/// Samples in a GPU's memory.
#[derive(Debug)]
pub struct DeviceSamples {
    pixels: CudaSlice<f32>,
    labels: CudaSlice<u32>,
}

/// A range of consecutive samples in a GPU's memory, possibly empty.
#[derive(Debug)]
pub struct Batch<'a> {
    /// The pixels, [`PIXELS`] values per sample.
    pub pixels: CudaView<'a, f32>,
    /// The labels, one per sample.
    pub labels: CudaView<'a, u32>,
}

impl Batch<'_> {
    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl DeviceSamples {
    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the samples of `range` without copying them.
    ///
    /// # Errors
    /// Fails if `range` is not within the samples.
    pub fn batch(&self, range: Range<usize>) -> anyhow::Result<Batch<'_>> {
        let Range { start, end } = range;
        ensure!(start <= end && end <= self.len(), "samples {start}..{end} of {}", self.len());
        let pixels = self.pixels.slice(start * PIXELS..end * PIXELS);
        Ok(Batch { pixels, labels: self.labels.slice(start..end) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_are_split_without_loss() {
        let digits = Digits::load().unwrap();
        assert_eq!((digits.train.len(), digits.test.len()), (1438, 359));
        assert_eq!(digits.train.pixels.len(), 1438 * PIXELS);
        // The shuffle and the split must preserve the sums over the file.
        let both = [&digits.train, &digits.test];
        let of_file = Samples::parse(include_str!("../data/digits.csv")).unwrap();
        let labels = |samples: &Samples| samples.labels.iter().sum::<u32>();
        assert_eq!(both.map(labels).iter().sum::<u32>(), labels(&of_file));
        let pixels = |samples: &Samples| samples.pixels.iter().map(|&pixel| f64::from(pixel)).sum::<f64>();
        assert_eq!(both.map(pixels).iter().sum::<f64>(), pixels(&of_file));
        assert!(digits.test.pixels.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
    }

    #[test]
    fn an_image_keeps_its_label() {
        let file = Samples::parse(include_str!("../data/digits.csv")).unwrap();
        let test = Digits::load().unwrap().test;
        let (image, label) = (test.image(17), test.labels[17]);
        assert!((0..file.len()).any(|index| file.image(index) == image && file.labels[index] == label));
    }

    #[test]
    fn the_error_names_line_and_column_of_a_bad_value() {
        let good = format!("{}7", "3,".repeat(PIXELS));
        let bad = format!("3,17,{}7", "3,".repeat(PIXELS - 2));
        let error = Samples::parse(&format!("{good}\n{bad}\n")).unwrap_err();
        assert_eq!(format!("{error:#}"), "line 2: column 2: `17` is not a whole number from 0 to 16");
        let error = Samples::parse("1,2,3").unwrap_err();
        assert_eq!(format!("{error:#}"), "line 1: 3 columns, expected 65");
    }
}
