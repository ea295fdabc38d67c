//! The channels of a texture's element: how bytes become numbers.

use half::f16;
use virtual_gpu_core::array::{Channel, Format};
use virtual_gpu_core::texture::Sampling;

/// The number of channels that a fetch returns.
const CHANNELS: usize = 4;

/// An element's channels, in 32 bits each.
pub(crate) type Texel = [u32; CHANNELS];

/// Returns the channels of an element. Channels that its format lacks are 0, and the fourth is 1.
pub(crate) fn decode(format: Format, sampling: &Sampling, bytes: &[u8]) -> Texel {
    let size = format.channel.bytes() as usize;
    let is_float = sampling.returns_floats(format);
    let mut texel = missing(is_float);
    for (at, (to, bytes)) in texel.iter_mut().zip(bytes.chunks_exact(size)).enumerate() {
        let mut padded = [0; 4];
        padded[..size].copy_from_slice(bytes);
        let bits = u32::from_le_bytes(padded);
        let unsigned = |most: u32| (bits as f32 / most as f32).to_bits();
        let signed = |value: i32, most: i32| (value as f32 / most as f32).max(-1.0).to_bits();
        *to = match format.channel {
            Channel::F32 | Channel::U32 | Channel::S32 => bits,
            Channel::F16 => f16::from_bits(bits as u16).to_f32().to_bits(),
            Channel::U8 if is_float && sampling.is_srgb && at < 3 => linear(bits as f32 / 255.0).to_bits(),
            Channel::U8 if is_float => unsigned(0xff),
            Channel::U16 if is_float => unsigned(0xffff),
            Channel::S8 if is_float => signed((bits as i8).into(), 0x7f),
            Channel::S16 if is_float => signed((bits as i16).into(), 0x7fff),
            Channel::U8 | Channel::U16 => bits,
            Channel::S8 => i32::from(bits as i8).cast_unsigned(),
            Channel::S16 => i32::from(bits as i16).cast_unsigned(),
        };
    }
    texel
}

/// Returns the border color.
pub(crate) fn border(format: Format, sampling: &Sampling) -> Texel {
    let is_float = sampling.returns_floats(format);
    let mut texel = missing(is_float);
    for (to, color) in texel.iter_mut().zip(sampling.border).take(format.channels.into()) {
        *to = match format.channel {
            _ if is_float => color.to_bits(),
            Channel::S8 | Channel::S16 | Channel::S32 => (color as i32).cast_unsigned(),
            _ => color as u32,
        };
    }
    texel
}

/// Returns the channels of an element that has none.
fn missing(is_float: bool) -> Texel {
    [0, 0, 0, if is_float { 1.0_f32.to_bits() } else { 1 }]
}

/// Converts a color from sRGB (IEC 61966-2-1).
fn linear(color: f32) -> f32 {
    if color <= 0.04045 { color / 12.92 } else { ((color + 0.055) / 1.055).powf(2.4) }
}

/// Mixes elements whose channels are floating-point numbers.
#[derive(Debug, Default)]
pub(crate) struct Mix {
    sums: [f64; CHANNELS],
}

impl Mix {
    /// Adds an element with its weight.
    pub(crate) fn add(&mut self, texel: Texel, weight: f64) {
        for (sum, bits) in self.sums.iter_mut().zip(texel) {
            *sum += f64::from(f32::from_bits(bits)) * weight;
        }
    }

    /// Returns the mixture.
    pub(crate) fn texel(&self) -> Texel {
        self.sums.map(|sum| (sum as f32).to_bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use virtual_gpu_core::texture::AddressMode;

    fn sampling(keeps_integers: bool, is_srgb: bool) -> Sampling {
        Sampling {
            modes: [AddressMode::Clamp; 3],
            is_linear: false,
            keeps_integers,
            is_normalized: true,
            is_srgb,
            mixes_levels: false,
            level_bias: 0.0,
            level_range: [0.0; 2],
            border: [0.5, -2.0, 3.0, 4.0],
        }
    }

    fn floats(channel: Channel, channels: u8, bytes: &[u8]) -> [f32; 4] {
        decode(Format { channel, channels }, &sampling(false, false), bytes).map(f32::from_bits)
    }

    #[test]
    fn small_integers_become_numbers_up_to_one() {
        assert_eq!(floats(Channel::U8, 2, &[255, 51]), [1.0, 0.2, 0.0, 1.0]);
        assert_eq!(floats(Channel::S8, 4, &[127, 0x81, 0x80, 0]), [1.0, -1.0, -1.0, 0.0]);
        assert_eq!(floats(Channel::U16, 1, &[255, 255]), [1.0, 0.0, 0.0, 1.0]);
        assert_eq!(floats(Channel::S16, 1, &[0, 0x80])[0], -1.0);
        assert_eq!(floats(Channel::F16, 2, &[0, 0x3c, 0, 0xc0]), [1.0, -2.0, 0.0, 1.0]);
    }

    #[test]
    fn integers_stay_integers_on_request() {
        let format = Format { channel: Channel::S16, channels: 2 };
        assert_eq!(decode(format, &sampling(true, false), &[0xff, 0xff, 2, 1]), [u32::MAX, 0x102, 0, 1]);
        let wide = Format { channel: Channel::U32, channels: 1 };
        assert_eq!(decode(wide, &sampling(false, false), &[1, 2, 3, 4])[0], 0x0403_0201);
        assert_eq!(border(format, &sampling(true, false)), [0, -2_i32 as u32, 0, 1]);
    }

    #[test]
    fn colors_are_converted_from_srgb_but_alpha_is_not() {
        let format = Format { channel: Channel::U8, channels: 4 };
        let texel = decode(format, &sampling(false, true), &[0, 255, 128, 128]).map(f32::from_bits);
        assert_eq!((texel[0], texel[1], texel[3]), (0.0, 1.0, 128.0 / 255.0));
        assert!((texel[2] - 0.215_860_5).abs() < 1e-6, "{texel:?}");
    }
}
