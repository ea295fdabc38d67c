//! Environment variables that change the behavior of the course, CUDA, or NCCL.

use std::ffi::OsString;

use super::diagnosis::{Diagnosis, Status};

/// What each variable does. For NCCL, see <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html>.
const KNOWN: &[(&str, &str)] = &[
    ("CUDA_VISIBLE_DEVICES", "hides GPUs and renumbers the others"),
    ("CUDA_LAUNCH_BLOCKING", "1 makes each launch wait for its kernel, so nothing overlaps"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "how many work queues a GPU has; with too few, streams are serialized"),
    ("LAB_DURATIONS", "the file where a test program writes how long each check took"),
    ("LAB_TIER", "the tier that the checks run on"),
    ("LAB_TIMEOUT", "seconds after which a hanging check is stopped"),
    ("LAB_TIMELINES", "the folder where checks write their streams' timelines"),
    ("NCCL_ALGO", "which algorithms NCCL may choose"),
    ("NCCL_BUFFSIZE", "the size in bytes of the buffers between two GPUs"),
    ("NCCL_COLLNET_ENABLE", "1 lets network switches perform reductions, if NCCL has a plugin for them"),
    ("NCCL_COMM_ID", "the address where all ranks meet, instead of the one in the id"),
    ("NCCL_CONF_FILE", "a file with more variables, instead of ~/.nccl.conf (since NCCL 2.23)"),
    ("NCCL_CROSS_NIC", "whether rings may use different network cards on different nodes"),
    ("NCCL_CUMEM_ENABLE", "whether buffers are allocated with CUDA's virtual memory calls"),
    ("NCCL_DEBUG", "how much NCCL logs"),
    ("NCCL_DEBUG_FILE", "the file that NCCL logs to"),
    ("NCCL_DEBUG_SUBSYS", "which of its subsystems NCCL logs"),
    ("NCCL_HOSTID", "what counts as one machine"),
    ("NCCL_IB_DISABLE", "1 keeps NCCL off InfiniBand and RoCE"),
    ("NCCL_IB_GID_INDEX", "which of a card's addresses RoCE uses"),
    ("NCCL_IB_HCA", "which InfiniBand cards NCCL uses"),
    (
        "NCCL_LAUNCH_ORDER_IMPLICIT",
        "1 launches calls on several communicators in the order in which the host made them (since NCCL 2.26)",
    ),
    ("NCCL_LAUNCH_MODE", "whether a group's kernels are launched together"),
    ("NCCL_MAX_CTAS", "the maximum number of blocks for a collective"),
    ("NCCL_MIN_CTAS", "the minimum number of blocks for a collective"),
    ("NCCL_MAX_NCHANNELS", "the maximum number of channels that NCCL may use"),
    ("NCCL_MIN_NCHANNELS", "the minimum number of channels that NCCL uses"),
    ("NCCL_MULTI_RANK_GPU_ENABLE", "lets ranks share a GPU (since NCCL 2.30, experimental)"),
    ("NCCL_NET_GDR_LEVEL", "how close a network card must be for direct access to GPU memory"),
    (
        "NCCL_NTHREADS",
        "threads per block: 64, 128, 256, or 512; for other values, such as 16, NCCL uses its own number",
    ),
    ("NCCL_NVLS_ENABLE", "whether NVLink switches perform reductions"),
    ("NCCL_P2P_DISABLE", "1 makes GPUs communicate through host memory"),
    ("NCCL_P2P_LEVEL", "how close two GPUs must be to communicate directly"),
    ("NCCL_PLUGIN_P2P", "what NVIDIA's network plugin sends with: ib or ucx"),
    ("NCCL_PROTO", "which protocols NCCL may choose"),
    ("NCCL_SHM_DISABLE", "1 makes GPUs without direct access communicate over the network"),
    ("NCCL_SOCKET_IFNAME", "the network interfaces that ranks meet on"),
    ("NCCL_TOPO_FILE", "a file that describes how the machine is wired"),
    ("VIRTUAL_GPU_BOOTSTRAP_TIMEOUT", "seconds that a rank waits for the others to join a communicator"),
    ("VIRTUAL_GPU_CHECKS", "what happens when the virtual GPU detects a mistake: error, warn, or off"),
    ("VIRTUAL_GPU_COUNT", "the number of GPUs on the virtual tier"),
    ("VIRTUAL_GPU_NAME", "the name that each virtual GPU reports"),
    ("VIRTUAL_GPU_TIMEOUT", "seconds before the virtual GPU gives up on a wait that it can't decide"),
    ("VIRTUAL_GPU_TOPOLOGY", "the node whose times the virtual tier models"),
    ("VIRTUAL_GPU_TRACE", "where the virtual tier writes its timeline"),
    ("VIRTUAL_NCCL", "strict makes the virtual NCCL do everything that NCCL may do"),
    ("VIRTUAL_NCCL_INIT", "seconds that a strict virtual NCCL takes to create a communicator"),
];

/// Variables that are often set but have no effect here.
const NOTHING: &[(&str, &str)] =
    &[("NCCL_TIMEOUT", "NCCL has no such variable: PyTorch has its own timeout, and NCCL waits forever")];

/// A variable that NVIDIA's container images set, and that NCCL doesn't read.
const OF_IMAGES: &str = "NCCL_VERSION";

const PREFIXES: [&str; 3] = ["NCCL_", "LAB_", "VIRTUAL_"];

/// Returns a diagnosis for each variable that is set and relevant to the course.
pub(super) fn diagnoses(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<Diagnosis> {
    let mut diagnoses = Vec::new();
    for (name, value) in variables {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if name == OF_IMAGES {
            continue;
        }
        let of =
            |list: &[(&str, &'static str)]| list.iter().find(|known| known.0 == name).map(|known| known.1);
        let diagnosis = |says: &str| Diagnosis::new(format!("{name}={value}"), Status::Note, says);
        if let Some(says) = of(NOTHING) {
            diagnoses.push(diagnosis(says).help(format!("unset {name}")));
        } else if let Some(says) = of(KNOWN) {
            diagnoses.push(diagnosis(says));
        } else if PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            diagnoses.push(diagnosis("this course doesn't know this variable; check the spelling"));
        }
    }
    diagnoses.sort_by(|one, other| one.what.cmp(&other.what));
    diagnoses
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_variable_is_reported_with_its_effect() {
        let set = [
            ("HOME", "/root"),
            ("NCCL_TIMEOUT", "3"),
            ("NCCL_ALGO", "Ring"),
            ("NCCL_ALGOS", "Ring"),
            ("NCCL_VERSION", "2.28.3-1"),
        ];
        let diagnoses = super::diagnoses(set.map(|(name, value)| (name.into(), value.into())));
        let told: Vec<_> = diagnoses.iter().map(|diagnosis| diagnosis.what.as_str()).collect();
        assert_eq!(told, ["NCCL_ALGO=Ring", "NCCL_ALGOS=Ring", "NCCL_TIMEOUT=3"]);
        assert!(diagnoses[1].says.contains("check the spelling"));
        assert_eq!(diagnoses[2].help.as_deref(), Some("unset NCCL_TIMEOUT"));
    }
}
