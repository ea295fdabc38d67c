//! `tex`, `tld4`, `txq`, and `suq`: reads of textures, and properties of textures and surfaces.

use half::f16;

use super::bytes::Location;
use crate::fault::{Access as Kind, FaultKind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use crate::sampling::{self, Tap, WHOLE};
use crate::texel::{self, Mix, Texel};
use virtual_gpu_core::array::{Geometry, Level};
use virtual_gpu_core::texture::{AddressMode, Object, Surface, Texture};
use virtual_gpu_ptx::instruction::{
    ChannelType, Detail, ObjectQuery, Property, Shape, Slot, Space, TextureFetch,
};

/// The fault of a handle that stands for nothing.
const NO_OBJECT: &str = "no texture or surface object of the kernel's context has this handle: keep the object until the kernel is launched";

/// The problem of a read of bytes that the same kernel has written ("Read/Write Coherency", CUDA C++ Programming Guide).
const STALE: &str = "a read through a texture or surface may not see what the same kernel has written: write in one kernel, \
                     and read in the next";

/// The nearest elements that `tld4` returns, counterclockwise from the lower left: which of the two along x and along y.
const GATHERED: [[usize; 2]; 4] = [[0, 1], [1, 1], [1, 0], [0, 0]];

/// A place in a level of a texture.
#[derive(Clone, Copy)]
struct Place {
    /// The elements along each dimension.
    taps: [[Tap; 2]; 3],
    /// The layer of a layered texture.
    layer: Option<u64>,
}

impl Machine<'_> {
    /// Executes `tex` and `tld4`. It is not inlined, because that would make every other operation slower.
    #[inline(never)]
    pub(crate) fn fetch_texture(&mut self, fetch: &TextureFetch, mask: &Mask) -> Result<(), Stop> {
        self.looks += 1;
        for thread in mask.threads() {
            let texture = self.texture(fetch.handle, thread)?;
            if !fits(fetch.shape, texture.geometry) {
                return Err(
                    self.undefined("the instruction is for another kind of texture (such as 1D, 2D, or 3D) than the texture object", thread)
                );
            }
            let texel = match (texture.is_buffer, fetch.is_integer) {
                (true, false) => {
                    let why = "a texture of linear memory can be read only by index, with tex1Dfetch()";
                    return Err(self.undefined(why, thread));
                }
                (_, true) => self.fetch_by_index(texture, fetch, thread)?,
                (false, false) => self.fetch_by_coordinates(texture, fetch, thread)?,
            };
            self.return_texel(texture, fetch, texel, thread)?;
        }
        Ok(())
    }

    /// Reads the element with an index, without any filtering.
    fn fetch_by_index(
        &mut self,
        texture: &Texture,
        fetch: &TextureFetch,
        thread: usize,
    ) -> Result<Texel, Stop> {
        let level = match fetch.detail {
            Detail::Base => texture.levels[0],
            _ => return Err(self.undefined("an index can't be combined with a level of a mipmap", thread)),
        };
        let mut place = [0; 3];
        for (dimension, &slot) in fetch.coordinates.iter().enumerate() {
            let index = i64::from(self.block.files.word_of(slot, thread).cast_signed());
            let extent = level.extent[dimension];
            let mode = texture.sampling.mode(dimension);
            place[dimension] = match sampling::element(index, extent, AddressMode::Border) {
                Some(index) => index,
                // Programming guide: a fetch that is out of range returns zero.
                None if texture.is_buffer => return Ok([0; 4]),
                None if mode == AddressMode::Border => {
                    return Ok(texel::border(texture.format, &texture.sampling));
                }
                None if mode == AddressMode::Clamp => index.clamp(0, extent as i64 - 1) as u64,
                None => return Err(self.undefined("an integer coordinate is outside of the texture", thread)),
            };
        }
        if let Some(layer) = self.layer(fetch.index, level.extent[2], thread) {
            place[2] = layer;
        }
        self.element(texture, &level, place, thread)
    }

    /// Reads and mixes the elements near a point.
    fn fetch_by_coordinates(
        &mut self,
        texture: &Texture,
        fetch: &TextureFetch,
        thread: usize,
    ) -> Result<Texel, Stop> {
        let files = &self.block.files;
        let number = |slot: &Slot| f32::from_bits(files.word_of(*slot, thread));
        let mut coordinates = [0.0; 3];
        for (to, slot) in coordinates.iter_mut().zip(&fetch.coordinates) {
            *to = f64::from(number(slot));
        }
        let Texture { geometry, sampling, levels, .. } = texture;
        let mut face = None;
        if matches!(geometry, Geometry::Cube | Geometry::Cubes) {
            let (found, [s, t]) = sampling::face(coordinates);
            (face, coordinates) = (Some(found), [s, t, 0.0]);
        }
        let requested = match &fetch.detail {
            Detail::Base => None,
            Detail::Level(level) => Some(number(level)),
            Detail::Gradients(steps) => {
                let [x, y] = steps.each_ref().map(|step| step.iter().map(number).collect::<Vec<f32>>());
                Some(sampling::level_of([&x, &y], levels[0].extent, sampling.is_normalized))
            }
        };
        let layers = levels[0].extent[2];
        let layer = match face {
            Some(face) => Some(self.layer(fetch.index, layers / 6, thread).unwrap_or(0) * 6 + face),
            None => self.layer(fetch.index, layers, thread),
        };
        if let Some(channel) = fetch.gathered {
            return self.gather_channel(texture, coordinates, layer, channel, thread);
        }
        let read = match requested {
            Some(level) => sampling::levels(level, sampling, levels.len()),
            None => [(0, WHOLE), (0, 0)],
        };
        let mut mix = Mix::default();
        for (level, weight) in read {
            if weight == 0 {
                continue;
            }
            let level = levels[level];
            let place = place(texture, &level, coordinates, layer, sampling.is_linear);
            let texel = self.sample(texture, &level, place, thread)?;
            if weight == WHOLE {
                return Ok(texel);
            }
            mix.add(texel, f64::from(weight) / f64::from(WHOLE));
        }
        Ok(mix.texel())
    }

    /// Reads and mixes the elements at a place. Elements without weight are not read.
    fn sample(
        &mut self,
        texture: &Texture,
        level: &Level,
        place: Place,
        thread: usize,
    ) -> Result<Texel, Stop> {
        let mut mix = Mix::default();
        let [along_x, along_y, along_z] = place.taps;
        for z in along_z {
            for y in along_y {
                for x in along_x {
                    let weights = [x, y, z].map(|tap| f64::from(tap.weight) / f64::from(WHOLE));
                    let weight: f64 = weights.iter().product();
                    if weight == 0.0 {
                        continue;
                    }
                    let texel = self.tapped(texture, level, [x, y, z], place.layer, thread)?;
                    if weight == 1.0 {
                        return Ok(texel);
                    }
                    mix.add(texel, weight);
                }
            }
        }
        Ok(mix.texel())
    }

    /// Returns one channel of the four elements that linear filtering would mix.
    fn gather_channel(
        &mut self,
        texture: &Texture,
        coordinates: [f64; 3],
        layer: Option<u64>,
        channel: u8,
        thread: usize,
    ) -> Result<Texel, Stop> {
        if !texture.can_gather {
            let why = "a gather needs an array that was created with CUDA_ARRAY3D_TEXTURE_GATHER";
            return Err(self.undefined(why, thread));
        }
        let level = texture.levels[0];
        let Place { taps: [along_x, along_y, [only, _]], .. } =
            place(texture, &level, coordinates, layer, true);
        let mut gathered = [0; 4];
        for (to, [x, y]) in gathered.iter_mut().zip(GATHERED) {
            let texel = self.tapped(texture, &level, [along_x[x], along_y[y], only], layer, thread)?;
            *to = texel[usize::from(channel)];
        }
        Ok(gathered)
    }

    /// Reads the element at these indices, or returns the border color.
    fn tapped(
        &mut self,
        texture: &Texture,
        level: &Level,
        [x, y, z]: [Tap; 3],
        layer: Option<u64>,
        thread: usize,
    ) -> Result<Texel, Stop> {
        match (x.index, y.index, layer.or(z.index)) {
            (Some(x), Some(y), Some(z)) => self.element(texture, level, [x, y, z], thread),
            _ => Ok(texel::border(texture.format, &texture.sampling)),
        }
    }

    /// Reads an element.
    fn element(
        &mut self,
        texture: &Texture,
        level: &Level,
        [x, y, z]: [u64; 3],
        thread: usize,
    ) -> Result<Texel, Stop> {
        let size = texture.format.bytes();
        let mut bytes = [0; 16];
        let bytes = &mut bytes[..size as usize];
        let address = level.byte_at(x * size, y, z);
        self.read_cached(thread, address, bytes)?;
        Ok(texel::decode(texture.format, &texture.sampling, bytes))
    }

    /// Reads bytes through the caches of textures and surfaces, which don't see what the same kernel has written.
    pub(super) fn read_cached(&mut self, thread: usize, address: u64, bytes: &mut [u8]) -> Result<(), Stop> {
        let len = bytes.len() as u64;
        if self.unnoticed.is_none()
            && let Some((Location::Device(slot), offset)) = self.locate(Space::Global, address, len)
            && self.record.has_changed(slot, offset, len)
        {
            self.unnoticed = Some(self.access_fault(
                FaultKind::Undefined(STALE),
                Space::Global,
                Kind::Read,
                thread,
                address,
                len,
            ));
        }
        self.read_located(Space::Global, Kind::Read, thread, address, bytes)
    }

    /// Stores what a thread has fetched in its registers.
    fn return_texel(
        &mut self,
        texture: &Texture,
        fetch: &TextureFetch,
        texel: Texel,
        thread: usize,
    ) -> Result<(), Stop> {
        if fetch.result == ChannelType::Bits {
            for (&d, bits) in fetch.d.iter().zip(texel) {
                self.block.files.set_word(d, thread, bits);
            }
            return Ok(());
        }
        if !texture.sampling.returns_floats(texture.format) {
            return Err(self.undefined("a texture of integers can't be read as .f16", thread));
        }
        let [r, g, b, a] = texel.map(|bits| u32::from(f16::from_f32(f32::from_bits(bits)).to_bits()));
        let words =
            if fetch.result == ChannelType::Half { [r, g, b, a] } else { [r | g << 16, b | a << 16, 0, 0] };
        for (&d, word) in fetch.d.iter().zip(words) {
            self.block.files.set_word(d, thread, word);
        }
        Ok(())
    }

    /// Returns the layer that an index selects: the last one if there are fewer.
    fn layer(&self, index: Option<Slot>, layers: u64, thread: usize) -> Option<u64> {
        index.map(|index| u64::from(self.block.files.word_of(index, thread)).min(layers - 1))
    }

    /// Executes `txq` and `suq`.
    #[inline(never)]
    pub(crate) fn query_object(&mut self, query: &ObjectQuery, mask: &Mask) -> Result<(), Stop> {
        for thread in mask.threads() {
            let value = if query.is_surface {
                let Surface { geometry, level, .. } = self.surface(query.handle, thread)?;
                property(query.property, *geometry, level, 1, false)
            } else {
                let Texture { geometry, levels, sampling, .. } = self.texture(query.handle, thread)?;
                let level = query.level.map_or(0, |level| self.block.files.word_of(level, thread));
                let Some(level) = levels.get(level as usize) else {
                    return Err(self.undefined("the texture has no such level", thread));
                };
                property(query.property, *geometry, level, levels.len(), sampling.is_normalized)
            };
            self.block.files.set_word(query.d, thread, value as u32);
        }
        Ok(())
    }
}

impl<'l> Machine<'l> {
    /// Returns the object with the handle in a thread's register.
    fn object_of(&self, handle: Slot, thread: usize) -> Result<&'l Object, Stop> {
        let objects = self.launch.objects;
        let object = objects.get(self.block.files.long_of(handle, thread));
        object.map(|object| &**object).ok_or_else(|| self.undefined(NO_OBJECT, thread))
    }

    /// Returns the texture with the handle in a thread's register.
    fn texture(&self, handle: Slot, thread: usize) -> Result<&'l Texture, Stop> {
        match self.object_of(handle, thread)? {
            Object::Texture(texture) => Ok(texture),
            Object::Surface(_) => Err(self.undefined("the handle is that of a surface object", thread)),
        }
    }

    /// Returns the surface with the handle in a thread's register.
    pub(super) fn surface(&self, handle: Slot, thread: usize) -> Result<&'l Surface, Stop> {
        match self.object_of(handle, thread)? {
            Object::Surface(surface) => Ok(surface),
            Object::Texture(_) => Err(self.undefined("the handle is that of a texture object", thread)),
        }
    }
}

/// Returns whether an instruction can read such a texture.
fn fits(shape: Shape, geometry: Geometry) -> bool {
    matches!(
        (shape, geometry),
        (Shape::D1, Geometry::Line)
            | (Shape::D2, Geometry::Plane)
            | (Shape::D3, Geometry::Volume)
            | (Shape::A1d, Geometry::Lines)
            | (Shape::A2d, Geometry::Planes)
            | (Shape::Cube, Geometry::Cube)
            | (Shape::ACube, Geometry::Cubes)
    )
}

/// Returns the elements near a point.
fn place(
    texture: &Texture,
    level: &Level,
    coordinates: [f64; 3],
    layer: Option<u64>,
    is_linear: bool,
) -> Place {
    let Texture { geometry, sampling, .. } = texture;
    let (dimensions, is_cube) = match geometry {
        Geometry::Line | Geometry::Lines => (1, false),
        Geometry::Plane | Geometry::Planes => (2, false),
        Geometry::Volume => (3, false),
        Geometry::Cube | Geometry::Cubes => (2, true),
    };
    let is_normalized = sampling.is_normalized || is_cube;
    let mut taps = [Tap::ONLY; 3];
    for (dimension, taps) in taps.iter_mut().enumerate().take(dimensions) {
        let (coordinate, extent) = (coordinates[dimension], level.extent[dimension]);
        let mode = sampling.mode(dimension);
        *taps = match is_linear {
            true => sampling::linear(coordinate, extent, is_normalized, mode),
            false => sampling::nearest(coordinate, extent, is_normalized, mode),
        };
    }
    Place { taps, layer }
}

/// Returns a property of a level of a texture or surface. An extent that it doesn't have is 0.
fn property(
    property: Property,
    geometry: Geometry,
    level: &Level,
    levels: usize,
    is_normalized: bool,
) -> u64 {
    let [width, height, depth] = level.extent;
    match (property, geometry) {
        (Property::Width, _) => width,
        (Property::Height, Geometry::Line | Geometry::Lines) => 0,
        (Property::Height, _) => height,
        (Property::Depth, Geometry::Volume) => depth,
        (Property::ArraySize, Geometry::Lines | Geometry::Planes) => depth,
        (Property::ArraySize, Geometry::Cubes) => depth / 6,
        (Property::MipmapLevels, _) => levels as u64,
        (Property::NormalizedCoordinates, _) => is_normalized.into(),
        // Surfaces are arrays, which don't have a linear layout.
        (Property::Depth | Property::ArraySize | Property::MemoryLayout, _) => 0,
    }
}
