//! The figures of NCCL's tuning model (NCCL 2.30, `graph/tuning.cc`).

/// Latencies in µs, for LL, LL128, and Simple: `baseLatencies` and `hwLatencies` of `ncclTunerConstantsDefaults`.
pub(super) struct Latencies {
    pub(super) base: [f64; 3],
    pub(super) nvlink: [f64; 3],
    pub(super) pci: [f64; 3],
    pub(super) network: [f64; 3],
}

pub(super) const TREE: Latencies = Latencies {
    base: [6.8, 14.0, 8.4],
    nvlink: [0.6, 1.25, 4.0],
    pci: [1.0, 1.9, 4.0],
    network: [5.0, 8.5, 14.0],
};
pub(super) const RING: Latencies = Latencies {
    base: [6.6, 14.0, 8.4],
    nvlink: [0.6, 1.9, 3.4],
    pci: [1.0, 2.5, 5.7],
    network: [2.7, 4.0, 14.0],
};
pub(super) const NVLS: Latencies =
    Latencies { base: [0.0; 3], nvlink: [25.0; 3], pci: [0.0; 3], network: [18.0; 3] };
pub(super) const NVLS_TREE: Latencies =
    Latencies { base: [0.0; 3], nvlink: [25.0; 3], pci: [0.0; 3], network: [14.0; 3] };

/// A generation's maximum bandwidths in GB/s, on one node, on two nodes, and on more.
pub(super) struct Caps {
    /// With LL, across all channels, on one node. On several nodes, it depends on the CPUs.
    pub(super) ll: f64,
    pub(super) ring_ll128: [f64; 3],
    pub(super) tree_ll128: [f64; 3],
    pub(super) tree: [f64; 3],
    pub(super) nvls_tree: [f64; 3],
    /// The achievable fraction of the switches' bandwidth.
    pub(super) nvls_efficiency: f64,
}

/// `llMaxBws` for AMD CPUs, on two nodes and on more.
pub(super) const LL_CAP_OF_NODES: [f64; 2] = [22.5, 19.0];

pub(super) const VOLTA: Caps = Caps {
    ll: 39.0,
    ring_ll128: [20.0; 3],
    tree_ll128: [20.0; 3],
    tree: [26.5, 18.5, 10.0],
    nvls_tree: [26.5, 18.5, 10.0],
    nvls_efficiency: 0.0,
};
pub(super) const AMPERE: Caps = Caps {
    ll: 87.7,
    ring_ll128: [20.0; 3],
    tree_ll128: [20.0; 3],
    tree: [24.0, 23.6, 17.8],
    nvls_tree: [24.0, 23.6, 17.8],
    nvls_efficiency: 0.0,
};
pub(super) const HOPPER: Caps = Caps {
    ll: 141.0,
    ring_ll128: [36.7; 3],
    tree_ll128: [36.7, 36.7, 29.0],
    tree: [38.7, 41.4, 36.0],
    nvls_tree: [0.0, 57.7, 45.5],
    nvls_efficiency: 0.85,
};
pub(super) const BLACKWELL: Caps = Caps {
    ll: 282.0,
    ring_ll128: [73.4; 3],
    tree_ll128: [55.6, 31.67, 20.0],
    tree: [70.0, 42.8, 24.0],
    nvls_tree: [0.0, 96.0, 43.1],
    nvls_efficiency: 0.74,
};

/// `treeCorrectionFactor`: the achievable fraction of a tree's bandwidth, for powers of two starting at 64 bytes.
pub(super) const TREE_CORRECTION: [[f64; 23]; 3] = [
    [
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0,
        1.0, 1.0, 1.0,
    ],
    [
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9,
        0.9, 1.0, 1.0,
    ],
    [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7,
        0.8, 0.9, 0.9,
    ],
];

/// The number of bytes per channel and rank at which rings across several nodes reach a plateau, and the factor by
/// which their latency grows.
pub(super) const RING_PLATEAU: (f64, f64) = (64.0, 1.4);

/// The number of microseconds that each step of a ring across several nodes costs the CPU (`getNetOverhead`, AMD);
/// three times as many with Simple.
pub(super) const NETWORK_OVERHEAD: f64 = 2.0;

/// The maximum number of bytes for which point-to-point uses LL (`NCCL_P2P_LL_THRESHOLD`).
pub(super) const POINT_TO_POINT_LL: f64 = 16_384.0;
