//! Which elements of a texture a fetch reads, and how it mixes them.
//!
//! The formulas are those of the CUDA C++ Programming Guide, section "Texture Fetching": with linear filtering, the
//! coordinate minus one half is a fixed-point number with 8 fractional bits, which are the weight of the next element.

use virtual_gpu_core::texture::{AddressMode, Sampling};

/// The weight of an element that is not mixed with others.
pub(crate) const WHOLE: u16 = 256;

/// An element along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tap {
    /// Its index; `None` for the border color.
    pub(crate) index: Option<u64>,
    /// Its weight in units of 1/256.
    pub(crate) weight: u16,
}

impl Tap {
    /// The only element of a dimension that a texture doesn't have.
    pub(crate) const ONLY: [Self; 2] =
        [Self { index: Some(0), weight: WHOLE }, Self { index: Some(0), weight: 0 }];
}

/// Returns the index of the element that is read for any index.
pub(crate) fn element(index: i64, extent: u64, mode: AddressMode) -> Option<u64> {
    let count = extent as i64;
    let index = match mode {
        AddressMode::Wrap => index.rem_euclid(count),
        AddressMode::Clamp => index.clamp(0, count - 1),
        AddressMode::Mirror => {
            let place = index.rem_euclid(2 * count);
            place.min(2 * count - 1 - place)
        }
        AddressMode::Border if (0..count).contains(&index) => index,
        AddressMode::Border => return None,
    };
    Some(index as u64)
}

/// Returns a coordinate in units of elements. It is small enough for an integer, and it selects the same elements.
fn unfold(coordinate: f64, extent: u64, is_normalized: bool, mode: AddressMode) -> f64 {
    let count = extent as f64;
    let coordinate = if is_normalized { coordinate * count } else { coordinate };
    match mode {
        AddressMode::Wrap => coordinate.rem_euclid(count),
        AddressMode::Mirror => coordinate.rem_euclid(2.0 * count),
        AddressMode::Clamp | AddressMode::Border => coordinate.clamp(-4.0 * count, 4.0 * count),
    }
}

/// Returns the element that contains a coordinate.
pub(crate) fn nearest(coordinate: f64, extent: u64, is_normalized: bool, mode: AddressMode) -> [Tap; 2] {
    let index = unfold(coordinate, extent, is_normalized, mode).floor() as i64;
    let [only, other] = Tap::ONLY;
    [Tap { index: element(index, extent, mode), ..only }, other]
}

/// Returns the two elements whose centers are on both sides of a coordinate, with their weights.
pub(crate) fn linear(coordinate: f64, extent: u64, is_normalized: bool, mode: AddressMode) -> [Tap; 2] {
    let place = unfold(coordinate, extent, is_normalized, mode) - 0.5;
    let fixed = (place * f64::from(WHOLE)).round() as i64;
    let (index, next) = (fixed.div_euclid(WHOLE.into()), fixed.rem_euclid(WHOLE.into()) as u16);
    let tap = |index, weight| Tap { index: element(index, extent, mode), weight };
    [tap(index, WHOLE - next), tap(index + 1, next)]
}

/// Returns the levels of a mipmap that a fetch reads, with their weights, if a kernel requests this level.
pub(crate) fn levels(requested: f32, sampling: &Sampling, count: usize) -> [(usize, u16); 2] {
    let [least, most] = sampling.level_range;
    let last = count as f64 - 1.0;
    let level = f64::from((requested + sampling.level_bias).max(least).min(most)).max(0.0).min(last);
    if !sampling.mixes_levels {
        return [((level + 0.5).floor().min(last) as usize, WHOLE), (0, 0)];
    }
    let fixed = (level * f64::from(WHOLE)).round() as usize;
    let (level, next) = (fixed / usize::from(WHOLE), (fixed % usize::from(WHOLE)) as u16);
    [(level, WHOLE - next), ((level + 1).min(count - 1), next)]
}

/// Returns the level at which the larger of two steps, in units of coordinates, is as long as an element.
pub(crate) fn level_of(steps: [&[f32]; 2], extent: [u64; 3], is_normalized: bool) -> f32 {
    let length = |step: &[f32]| {
        let elements = step.iter().zip(extent).map(|(&step, extent)| {
            let scale = if is_normalized { extent as f64 } else { 1.0 };
            (f64::from(step) * scale).powi(2)
        });
        elements.sum::<f64>().sqrt()
    };
    length(steps[0]).max(length(steps[1])).log2() as f32
}

/// Returns the face of a cube that a direction meets, and the normalized coordinates in it.
///
/// The faces and their axes are those of the table in section "Cubemap Textures" of the CUDA C++ Programming Guide.
pub(crate) fn face([x, y, z]: [f64; 3]) -> (u64, [f64; 2]) {
    let (face, major, s, t) = if x.abs() > y.abs() && x.abs() > z.abs() {
        if x >= 0.0 { (0, x, -z, -y) } else { (1, -x, z, -y) }
    } else if y.abs() > z.abs() {
        if y >= 0.0 { (2, y, x, z) } else { (3, -y, x, -z) }
    } else if z >= 0.0 {
        (4, z, x, -y)
    } else {
        (5, -z, -x, -y)
    };
    (face, [s, t].map(|minor| (minor / major + 1.0) / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    use AddressMode::{Border, Clamp, Mirror, Wrap};

    fn indices(mode: AddressMode) -> Vec<Option<u64>> {
        (-4..7).map(|index| element(index, 3, mode)).collect()
    }

    fn some(indices: [u64; 11]) -> Vec<Option<u64>> {
        indices.map(Some).to_vec()
    }

    #[test]
    fn indices_outside_of_a_texture() {
        assert_eq!(indices(Wrap), some([2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]));
        assert_eq!(indices(Clamp), some([0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2]));
        assert_eq!(indices(Mirror), some([2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0]));
        let mut border = vec![None; 11];
        border[4..7].copy_from_slice(&[Some(0), Some(1), Some(2)]);
        assert_eq!(indices(Border), border);
    }

    #[test]
    fn the_nearest_element_contains_the_coordinate() {
        let index = |x, is_normalized, mode| nearest(x, 4, is_normalized, mode)[0].index;
        assert_eq!(index(2.999, false, Clamp), Some(2));
        assert_eq!(index(0.75, true, Clamp), Some(3));
        assert_eq!(index(-0.01, true, Wrap), Some(3));
        assert_eq!(index(1e30, true, Clamp), Some(3));
        assert_eq!(index(-1e30, false, Border), None);
        assert_eq!(index(f64::INFINITY, true, Clamp), Some(3));
        assert_eq!(index(f64::NAN, true, Clamp), Some(0));
        assert_eq!(index(f64::INFINITY, true, Wrap), Some(0));
        assert_eq!(index(1.25, true, Mirror), Some(2));
    }

    #[test]
    fn weights_have_eight_fractional_bits() {
        let at = |x, mode| linear(x, 4, false, mode).map(|tap| (tap.index, tap.weight));
        assert_eq!(at(1.5, Clamp), [(Some(1), 256), (Some(2), 0)]);
        assert_eq!(at(2.0, Clamp), [(Some(1), 128), (Some(2), 128)]);
        // 0.3 - 0.5 = -0.2, and 0.8 * 256 = 204.8.
        assert_eq!(at(0.3, Clamp), [(Some(0), 51), (Some(0), 205)]);
        assert_eq!(at(0.3, Border), [(None, 51), (Some(0), 205)]);
        // A fraction that rounds up to 1 belongs to the next element.
        assert_eq!(at(1.4999, Clamp), [(Some(1), 256), (Some(2), 0)]);
        let wrapped = linear(0.0, 4, true, Wrap).map(|tap| (tap.index, tap.weight));
        assert_eq!(wrapped, [(Some(3), 128), (Some(0), 128)]);
    }

    fn sampling(mixes_levels: bool, level_bias: f32, level_range: [f32; 2]) -> Sampling {
        Sampling {
            modes: [Clamp; 3],
            is_linear: false,
            keeps_integers: false,
            is_normalized: true,
            is_srgb: false,
            mixes_levels,
            level_bias,
            level_range,
            border: [0.0; 4],
        }
    }

    #[test]
    fn levels_are_biased_clamped_and_mixed() {
        assert_eq!(levels(1.25, &sampling(true, 0.5, [0.0, 9.0]), 4), [(1, 64), (2, 192)]);
        assert_eq!(levels(1.25, &sampling(false, 0.5, [0.0, 9.0]), 4)[0], (2, 256));
        assert_eq!(levels(9.0, &sampling(true, 0.0, [0.0, 9.0]), 4), [(3, 256), (3, 0)]);
        assert_eq!(levels(3.0, &sampling(true, 0.0, [0.0, 1.5]), 4), [(1, 128), (2, 128)]);
        assert_eq!(levels(-3.0, &sampling(true, 0.0, [0.5, 2.0]), 4), [(0, 128), (1, 128)]);
        assert_eq!(levels(f32::NAN, &sampling(true, 0.0, [0.0, 2.0]), 4)[0].0, 0);
    }

    #[test]
    fn a_step_of_two_elements_is_level_one() {
        assert_eq!(level_of([&[0.25, 0.0], &[0.0, 0.125]], [8, 8, 1], true), 1.0);
        assert_eq!(level_of([&[0.0], &[4.0]], [8, 1, 1], false), 2.0);
    }

    #[test]
    fn directions_meet_the_faces_of_the_programming_guide() {
        assert_eq!(face([2.0, 0.5, -1.0]), (0, [0.75, 0.375]));
        assert_eq!(face([-2.0, 0.5, -1.0]), (1, [0.25, 0.375]));
        assert_eq!(face([0.5, 2.0, -1.0]), (2, [0.625, 0.25]));
        assert_eq!(face([0.5, -2.0, -1.0]), (3, [0.625, 0.75]));
        assert_eq!(face([0.5, 1.0, 2.0]), (4, [0.625, 0.25]));
        assert_eq!(face([0.5, 1.0, -2.0]), (5, [0.375, 0.25]));
    }
}
