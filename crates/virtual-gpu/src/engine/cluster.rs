//! Clusters: the sizes that a kernel and the program ask for.

use super::function::Function;
use super::launch::LaunchShape;
use super::{Engine, FunctionHandle};
use crate::device::{LARGEST_CLUSTER, LARGEST_PORTABLE_CLUSTER};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

/// The program's settings for a kernel's clusters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClusterSettings {
    /// The required number of blocks along each dimension; 0 if there is none.
    required: [u32; 3],
    /// Whether a cluster may have more blocks than every GPU supports.
    allows_large: bool,
    /// `CUclusterSchedulingPolicy`, which has no effect here.
    policy: i32,
}

impl Function {
    /// Returns the most blocks in a cluster.
    fn largest_cluster(&self) -> u32 {
        let gpu = if self.clusters.allows_large { LARGEST_CLUSTER } else { LARGEST_PORTABLE_CLUSTER };
        self.kernel.cluster().most_blocks.map_or(gpu, |most| most.min(gpu))
    }

    /// Returns the size of a cluster that a kernel or the program requires in advance.
    fn required_cluster(&self) -> Option<[u32; 3]> {
        self.kernel
            .cluster()
            .required
            .or(Some(self.clusters.required))
            .filter(|required| required.iter().all(|&blocks| blocks > 0))
    }

    /// Returns the value of the attribute of clusters with this number.
    pub(super) fn cluster_attribute(&self, attribute: i32) -> i32 {
        let rules = self.kernel.cluster();
        match attribute {
            10 => (rules.is_explicit && rules.required.is_none()).into(),
            11..=13 => rules.required.unwrap_or(self.clusters.required)[attribute as usize - 11] as i32,
            14 => self.clusters.allows_large.into(),
            _ => self.clusters.policy,
        }
    }

    /// Sets the attribute of clusters with this number.
    pub(super) fn set_cluster_attribute(&mut self, attribute: i32, value: i32) -> CudaResult<()> {
        match (attribute, value) {
            (11..=13, 0..) => {
                if self.kernel.cluster().required.is_some() {
                    let name = self.kernel.name();
                    let message = format!(
                        "kernel `{name}` was compiled for a fixed cluster size (.reqnctapercluster), which attributes can't change"
                    );
                    return Err(Error::new(CudaStatus::NotPermitted, message));
                }
                self.clusters.required[attribute as usize - 11] = value as u32;
            }
            (14, 0 | 1) => self.clusters.allows_large = value == 1,
            (15, 0..=2) => self.clusters.policy = value,
            _ => {
                return Err(self.invalid(format!("{value} is not a value of function attribute {attribute}")));
            }
        }
        Ok(())
    }

    /// Returns the size of a launch's clusters, if the launch or the kernel states one.
    ///
    /// # Errors
    /// Returns `InvalidClusterSize` if the two differ, the size is too large, or it does not divide the grid.
    pub(super) fn cluster(&self, shape: &LaunchShape) -> CudaResult<Option<[u32; 3]>> {
        let name = self.kernel.name();
        let refuse = |what: String| {
            Err(Error::new(CudaStatus::InvalidClusterSize, format!("launch of `{name}`: {what}")))
        };
        let set = self.clusters.required.iter().filter(|&&blocks| blocks > 0).count();
        if self.kernel.cluster().required.is_none() && !matches!(set, 0 | 3) {
            return refuse(
                "the required width, height, and depth of a cluster must be all 0 or all positive".to_owned(),
            );
        }
        let required = self.required_cluster();
        let Some(size) = shape.cluster.or(required) else {
            return match self.kernel.cluster().is_explicit {
                true => refuse(
                    "the kernel needs a cluster size (CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)".to_owned(),
                ),
                false => Ok(None),
            };
        };
        let [x, y, z] = size;
        if let Some([a, b, c]) = required.filter(|&required| required != size) {
            return refuse(format!(
                "clusters of {x} x {y} x {z} blocks: the kernel requires {a} x {b} x {c}"
            ));
        }
        let blocks = size.into_iter().try_fold(1_u32, u32::checked_mul).unwrap_or(u32::MAX);
        let most = self.largest_cluster();
        if blocks == 0 || blocks > most {
            return refuse(format!(
                "{x} x {y} x {z} blocks in a cluster: there must be 1 to {most} \
                 (CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED permits up to {LARGEST_CLUSTER})"
            ));
        }
        for ((axis, blocks), of) in ["x", "y", "z"].into_iter().zip(shape.grid).zip(size) {
            if !blocks.is_multiple_of(of) {
                return refuse(format!(
                    "grid dimension {axis} is {blocks}, which is not a multiple of the cluster's {of} blocks"
                ));
            }
        }
        Ok(Some(size))
    }
}

impl Engine {
    /// Returns the most blocks that a cluster of this function can have.
    pub fn largest_cluster(&self, function: FunctionHandle) -> CudaResult<u32> {
        Ok(self.state().function(function)?.largest_cluster())
    }

    /// Returns the size of the clusters of a launch with this shape.
    pub fn cluster(&self, function: FunctionHandle, shape: &LaunchShape) -> CudaResult<Option<[u32; 3]>> {
        self.state().function(function)?.cluster(shape)
    }
}
