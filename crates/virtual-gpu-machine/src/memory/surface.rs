//! `suld` and `sust`: accesses to surfaces.

use super::access::read;
use crate::fault::{Access as Kind, FaultKind, OutsideSurface, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use virtual_gpu_core::array::Geometry;
use virtual_gpu_core::texture::Surface;
use virtual_gpu_ptx::instruction::{Outside, Shape, Space, SurfaceAccess, Value};

impl Machine<'_> {
    /// Executes `suld` and `sust`. It is not inlined, because that would make every other operation slower.
    #[inline(never)]
    pub(crate) fn access_surface(&mut self, access: &SurfaceAccess, mask: &Mask) -> Result<(), Stop> {
        if access.is_store {
            self.changes += 1;
        } else {
            self.looks += 1;
        }
        let size = usize::from(access.bytes);
        let len = size * access.values.len();
        for thread in mask.threads() {
            let address = self.surface_address(access, len as u64, thread)?;
            let mut bytes = [0; 16];
            let bytes = &mut bytes[..len];
            if access.is_store {
                let Some(address) = address else { continue };
                for (to, value) in bytes.chunks_exact_mut(size).zip(&access.values) {
                    to.copy_from_slice(&self.value_of(*value, thread).to_le_bytes()[..size]);
                }
                self.write_located(Space::Global, Kind::Write, thread, address, bytes)?;
                continue;
            }
            if let Some(address) = address {
                self.read_cached(thread, address, bytes)?;
            }
            for (from, value) in bytes.chunks_exact(size).zip(&access.values) {
                let bits = read(from);
                match *value {
                    Value::Word(d) => self.block.files.set_word(d, thread, bits as u32),
                    Value::Long(d) => self.block.files.set_long(d, thread, bits),
                }
            }
        }
        Ok(())
    }

    /// Returns the address of `len` bytes in a surface; `None` if they are outside and the access has no effect.
    fn surface_address(&self, access: &SurfaceAccess, len: u64, thread: usize) -> Result<Option<u64>, Stop> {
        let surface = self.surface(access.handle, thread)?;
        if !fits(access.shape, surface.geometry) {
            return Err(self.undefined("the instruction is for another kind of surface (such as 1D, 2D, or 3D) than the surface object", thread));
        }
        let Surface { level, format, .. } = surface;
        let files = &self.block.files;
        let mut at = [0_i64; 3];
        for (to, &slot) in at.iter_mut().zip(&access.coordinates) {
            *to = files.word_of(slot, thread).cast_signed().into();
        }
        if let Some(index) = access.index {
            at[2] = files.word_of(index, thread).into();
        }
        let kind = if access.is_store { Kind::Write } else { Kind::Read };
        let [width, rows, planes] = level.extent;
        let extent = [width * format.bytes(), rows, planes];
        let is_inside = |at: i64, len: u64, end: u64| u64::try_from(at).is_ok_and(|at| at + len <= end);
        if !(is_inside(at[0], len, extent[0])
            && is_inside(at[1], 1, extent[1])
            && is_inside(at[2], 1, extent[2]))
        {
            match access.outside {
                Outside::Zero => return Ok(None),
                Outside::Clamp if extent[0] >= len => {
                    let last = [extent[0] / len * len - len, rows - 1, planes - 1];
                    for (at, last) in at.iter_mut().zip(last) {
                        *at = (*at).clamp(0, last as i64);
                    }
                }
                Outside::Clamp | Outside::Trap => {
                    let outside = OutsideSurface { access: kind, bytes: len as u32, at, extent };
                    return Err(self.fault(FaultKind::OutsideSurface(Box::new(outside)), thread));
                }
            }
        }
        let [x, y, z] = at.map(|at| at as u64);
        if !x.is_multiple_of(len) {
            let why =
                "the x coordinate of a surface access, which counts bytes, must be a multiple of its size";
            return Err(self.undefined(why, thread));
        }
        Ok(Some(level.byte_at(x, y, z)))
    }
}

/// Returns whether an instruction can access such a surface. The faces of cubes are layers.
fn fits(shape: Shape, geometry: Geometry) -> bool {
    matches!(
        (shape, geometry),
        (Shape::D1, Geometry::Line)
            | (Shape::D2, Geometry::Plane)
            | (Shape::D3, Geometry::Volume)
            | (Shape::A1d, Geometry::Lines)
            | (Shape::A2d, Geometry::Planes | Geometry::Cube | Geometry::Cubes)
    )
}
