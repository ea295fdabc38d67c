//! Compares the model with published figures and keeps the table in `MODEL.md` up to date.

use super::choice::Enabled;
use super::preset::Preset;
use super::tuning::{Choice, Function, World, choose};

/// An all-reduce on a machine.
struct Published {
    machine: &'static str,
    topology: &'static str,
    world: World,
    algorithm: Option<&'static str>,
    bytes: u64,
    unit: Unit,
    /// The measured figure; `None` if we found none.
    published: Option<f64>,
    /// The maximum error that the model may have. `None`: the table only states the error.
    within: Option<f64>,
    source: &'static str,
}

#[derive(Clone, Copy)]
enum Unit {
    /// GB/s, as nccl-tests defines it.
    BusBandwidth,
    Microseconds,
}

/// Nodes with half of a DGX A100's adapters.
const FOUR_ADAPTERS: &str =
    "name = \"a100-4xhdr\"\nlike = \"dgx-a100\"\n[nccl]\nnetwork_bytes_per_s = 96e9\n";

const NODE: World = World { ranks: 8, nodes: 1 };

const NODES_128: World = World { ranks: 1024, nodes: 128 };

const PUBLISHED: [Published; 14] = [
    Published {
        machine: "8 H100 SXM",
        topology: "dgx-h100",
        world: NODE,
        algorithm: None,
        bytes: 8 << 30,
        unit: Unit::BusBandwidth,
        published: Some(478.0),
        within: Some(0.10),
        source: "nccl-tests, 476 to 480 GB/s",
    },
    Published {
        machine: "8 H100 SXM, `NCCL_ALGO=Ring`",
        topology: "dgx-h100",
        world: NODE,
        algorithm: Some("Ring"),
        bytes: 8 << 30,
        unit: Unit::BusBandwidth,
        published: Some(370.0),
        within: Some(0.10),
        source: "nccl-tests",
    },
    Published {
        machine: "8 H200 SXM",
        topology: "dgx-h100",
        world: NODE,
        algorithm: None,
        bytes: 8 << 30,
        unit: Unit::BusBandwidth,
        published: Some(475.0),
        within: Some(0.10),
        source: "nccl-tests; it has the same links as an H100",
    },
    Published {
        machine: "4 H100 SXM",
        topology: "dgx-h100",
        world: World { ranks: 4, nodes: 1 },
        algorithm: None,
        bytes: 8 << 30,
        unit: Unit::BusBandwidth,
        published: Some(366.0),
        within: Some(0.10),
        source: "nccl-tests",
    },
    Published {
        machine: "8 A100 SXM",
        topology: "dgx-a100",
        world: NODE,
        algorithm: None,
        bytes: 8 << 30,
        unit: Unit::BusBandwidth,
        published: Some(200.0),
        within: Some(0.10),
        source: "NVIDIA/nccl-tests#149; the preset's `efficiency` is fitted to it",
    },
    Published {
        machine: "3 nodes of 8 A100, 4 HDR adapters each",
        topology: FOUR_ADAPTERS,
        world: World { ranks: 24, nodes: 3 },
        algorithm: None,
        bytes: 128 << 20,
        unit: Unit::BusBandwidth,
        published: Some(96.0),
        within: None,
        source: "NVIDIA/nccl-tests#119",
    },
    Published {
        machine: "8 H20",
        topology: "dgx-h100",
        world: NODE,
        algorithm: None,
        bytes: 16,
        unit: Unit::Microseconds,
        published: Some(12.5),
        within: Some(0.25),
        source: "nccl-tests; it has the same links as an H100",
    },
    Published {
        machine: "8 H20",
        topology: "dgx-h100",
        world: NODE,
        algorithm: None,
        bytes: 4 << 10,
        unit: Unit::Microseconds,
        published: Some(16.7),
        within: Some(0.25),
        source: "nccl-tests",
    },
    Published {
        machine: "2 nodes of 8 H100, `NCCL_ALGO=Tree`",
        topology: "dgx-h100",
        world: World { ranks: 16, nodes: 2 },
        algorithm: Some("Tree"),
        bytes: 8,
        unit: Unit::Microseconds,
        published: Some(25.207),
        within: Some(0.25),
        source: "NCCL's own log of its model",
    },
    Published {
        machine: "2 nodes of 8 H20, `NCCL_ALGO=NVLSTree`",
        topology: "dgx-h100",
        world: World { ranks: 16, nodes: 2 },
        algorithm: Some("NVLSTree"),
        bytes: 8,
        unit: Unit::Microseconds,
        published: Some(47.6),
        within: None,
        source: "NVIDIA/nccl#1244; it has the same links as an H100",
    },
    Published {
        machine: "32 nodes of 8 A100, 4 HDR adapters each",
        topology: FOUR_ADAPTERS,
        world: World { ranks: 256, nodes: 32 },
        algorithm: None,
        bytes: 8,
        unit: Unit::Microseconds,
        published: Some(62.99),
        within: None,
        source: "NVIDIA/nccl#652",
    },
    Published {
        machine: "128 nodes of 8 H100",
        topology: "dgx-h100",
        world: NODES_128,
        algorithm: None,
        bytes: 8,
        unit: Unit::Microseconds,
        published: None,
        within: None,
        source: "none found",
    },
    Published {
        machine: "128 nodes of 8 H100",
        topology: "dgx-h100",
        world: NODES_128,
        algorithm: None,
        bytes: 8 << 30,
        unit: Unit::BusBandwidth,
        published: None,
        within: None,
        source: "none found",
    },
    Published {
        machine: "8 RTX 4090 on PCIe, `NCCL_ALGO=Tree`",
        topology: "pcie",
        world: NODE,
        algorithm: Some("Tree"),
        bytes: 8,
        unit: Unit::Microseconds,
        published: Some(42.6),
        within: None,
        source: "NVIDIA/nccl#1530: cards without peer-to-peer access, which the model does not cover",
    },
];

impl Published {
    fn choice(&self) -> Choice {
        let preset = Preset::find(self.topology).or_else(|_| Preset::from_toml(self.topology)).unwrap();
        let enabled = Enabled::parse(self.algorithm, None).unwrap();
        choose(&preset, &enabled, Function::AllReduce, self.world, self.bytes, true).unwrap()
    }

    /// Returns the model's figure.
    fn modeled(&self, choice: Choice) -> f64 {
        let nanoseconds = choice.nanoseconds as f64;
        let ranks = self.world.ranks as f64;
        match self.unit {
            Unit::BusBandwidth => self.bytes as f64 / nanoseconds * 2.0 * (ranks - 1.0) / ranks,
            Unit::Microseconds => nanoseconds / 1e3,
        }
    }

    fn row(&self) -> String {
        let choice = self.choice();
        let modeled = self.modeled(choice);
        let unit = match self.unit {
            Unit::BusBandwidth => "GB/s",
            Unit::Microseconds => "µs",
        };
        let size = match self.bytes {
            bytes if bytes >= 1 << 30 => format!("{} GiB", bytes >> 30),
            bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} B"),
        };
        let (published, error) = match self.published {
            Some(published) => {
                (format!("{published} {unit}"), format!("{:+.1}%", 100.0 * (modeled / published - 1.0)))
            }
            None => ("–".to_owned(), "–".to_owned()),
        };
        format!(
            "| {} | {size} | {}, {} | {modeled:.1} {unit} | {published} | {error} | {} |\n",
            self.machine,
            choice.algorithm.name(),
            choice.protocol.name(),
            self.source
        )
    }
}

const BEGIN: &str = "<!-- table: written by `BLESS=1 cargo test -p virtual-gpu --lib published` -->\n";
const END: &str = "<!-- end of table -->";

#[test]
fn the_model_is_within_the_errors_that_it_allows() {
    for published in &PUBLISHED {
        if let (Some(measured), Some(within)) = (published.published, published.within) {
            let modeled = published.modeled(published.choice());
            assert!((modeled / measured - 1.0).abs() <= within, "{}", published.row());
        }
    }
}

#[test]
fn the_table_in_model_md_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/MODEL.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the table's beginning is marked");
    let (table, after) = rest.split_once(END).expect("the table's end is marked");
    let mut made = "\n| all-reduce of | bytes | chosen | modeled | published | error | source |\n".to_owned();
    made.push_str("|---|---|---|---|---|---|---|\n");
    made.extend(PUBLISHED.iter().map(Published::row));
    made.push('\n');
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, [before, BEGIN, &made, END, after].concat()).unwrap();
    } else {
        assert_eq!(table, made, "BLESS=1 cargo test -p virtual-gpu --lib published");
    }
}
