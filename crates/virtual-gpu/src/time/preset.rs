//! The machines that can be modeled, with figures from a TOML file that cites a source for each figure.

use std::path::Path;

use toml::{Table, Value};

use virtual_gpu_core::handle::MAX_GPUS;

/// The presets that come with the virtual GPU, by name.
const BUILT_IN: [(&str, &str); 5] = [
    ("classroom", include_str!("../../presets/classroom.toml")),
    ("dgx-h100", include_str!("../../presets/dgx-h100.toml")),
    ("dgx-a100", include_str!("../../presets/dgx-a100.toml")),
    ("pcie", include_str!("../../presets/pcie.toml")),
    ("2x8-h100", include_str!("../../presets/2x8-h100.toml")),
];

/// Figures for nodes with identical GPUs. Rates are per second; times are in nanoseconds.
///
/// A program's data represents [`Self::stands_for`] times as much data. Throughput costs multiply the program's bytes
/// and instructions by this number; latencies are unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// The preset's name, which is shown with every modeled figure.
    pub name: String,
    /// How many times as much data a program's data represents.
    pub stands_for: f64,
    /// The number of GPUs across all nodes, unless `VIRTUAL_GPU_COUNT` sets another number.
    pub gpus: usize,
    /// The number of GPUs per node; any further GPUs are on additional nodes.
    pub gpus_per_node: usize,
    /// The number of streaming multiprocessors.
    pub multiprocessors: f64,
    /// The number of per-thread instructions per second, summed over all multiprocessors.
    pub instructions: f64,
    /// The number of bytes transferred between the multiprocessors and memory.
    pub memory_bytes: f64,
    /// The maximum number of bytes that one multiprocessor can transfer to and from the L2 cache.
    pub multiprocessor_bytes: f64,
    /// The number of bytes transferred between the multiprocessors and the L2 cache.
    pub l2_bytes: f64,
    /// The number of bytes transferred by the L1 caches, summed over all multiprocessors.
    pub l1_bytes: f64,
    /// The number of bytes transferred by shared memory, summed over all multiprocessors.
    pub shared_bytes: f64,
    /// The time that a call takes on the host.
    pub call_ns: u64,
    /// The time from a call's return until the GPU can start the enqueued work.
    pub launch_ns: u64,
    /// The time to record an event, or to pass a wait for an event.
    pub event_ns: u64,
    /// The time until a copy's first byte moves.
    pub copy_latency_ns: u64,
    /// The number of bytes copied from the host to the device.
    pub upload_bytes: f64,
    /// The number of bytes copied from the device to the host.
    pub download_bytes: f64,
    /// The number of bytes copied to or from a peer.
    pub peer_bytes: f64,
    /// The figures that NCCL's tuning model reads.
    pub links: Links,
}

/// NCCL's figures for a node's GPUs and the connections between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    /// Which of NCCL's tables applies.
    pub generation: Generation,
    /// How a node's GPUs are connected.
    pub kind: LinkKind,
    /// The number of channels in rings and trees.
    pub channels: f64,
    /// The bandwidth of each channel in bytes per second.
    pub channel_bytes: f64,
    /// The achievable fraction of the bus bandwidth, above 0 and at most 1.
    pub efficiency: f64,
    /// The bandwidth of each GPU's channel for in-switch reductions (NVLS) in bytes per second; 0 if there is none.
    pub switch_channel_bytes: f64,
    /// The total bandwidth of a node's adapters in bytes per second.
    pub network_bytes: f64,
    /// How many times as long compute takes while a collective is running.
    pub compute_slowdown: f64,
}

/// The GPU generations that NCCL has figures for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Compute capability 7.
    Volta,
    /// Compute capability 8.
    Ampere,
    /// Compute capability 9.
    Hopper,
    /// Compute capability 10.
    Blackwell,
}

/// What connects a node's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// NVLink, with or without switches.
    NvLink,
    /// PCI Express.
    Pci,
}

impl Preset {
    /// Returns the names of the presets that come with the virtual GPU.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Returns the preset with this name, or reads the file at this path if it ends in `.toml`.
    ///
    /// # Errors
    /// Returns a sentence that names the preset or the file and the key.
    pub fn find(asked: &str) -> Result<Self, String> {
        if let Some(text) = built_in(asked) {
            return Self::from_toml(text);
        }
        if Path::new(asked).extension().is_none_or(|extension| extension != "toml") {
            let known: Vec<_> = Self::names().collect();
            return Err(format!(
                "it must be one of {}, or the path of a file that ends in .toml",
                known.join(", ")
            ));
        }
        let text = std::fs::read_to_string(asked).map_err(|error| format!("cannot be read: {error}"))?;
        Self::from_toml(&text)
    }

    /// Reads a topology file.
    ///
    /// # Errors
    /// Returns a sentence that names the key or the line that is not TOML.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let mut whole = Figures { table: with_defaults(text)?, path: String::new() };
        let mut gpu = whole.part("gpu")?;
        let mut host = whole.part("host")?;
        let mut copy = whole.part("copy")?;
        let mut nccl = whole.part("nccl")?;
        let preset = Self {
            name: whole.text("name")?,
            stands_for: whole.positive("throughput_divided_by")?,
            gpus: whole.count_to("gpus", MAX_GPUS as f64)? as usize,
            gpus_per_node: whole.count("gpus_per_node")? as usize,
            multiprocessors: gpu.count("multiprocessors")?,
            instructions: gpu.positive("lane_instructions_per_s")?,
            memory_bytes: gpu.positive("memory_bytes_per_s")?,
            multiprocessor_bytes: gpu.positive("multiprocessor_bytes_per_s")?,
            l2_bytes: gpu.positive("l2_bytes_per_s")?,
            l1_bytes: gpu.positive("l1_bytes_per_s")?,
            shared_bytes: gpu.positive("shared_bytes_per_s")?,
            call_ns: host.nanoseconds("call_ns")?.max(1),
            launch_ns: host.nanoseconds("launch_ns")?,
            event_ns: host.nanoseconds("event_ns")?,
            copy_latency_ns: copy.nanoseconds("latency_ns")?,
            upload_bytes: copy.positive("upload_bytes_per_s")?,
            download_bytes: copy.positive("download_bytes_per_s")?,
            peer_bytes: copy.positive("peer_bytes_per_s")?,
            links: Links {
                generation: nccl.one_of(
                    "generation",
                    &[
                        ("volta", Generation::Volta),
                        ("ampere", Generation::Ampere),
                        ("hopper", Generation::Hopper),
                        ("blackwell", Generation::Blackwell),
                    ],
                )?,
                kind: nccl.one_of("link", &[("nvlink", LinkKind::NvLink), ("pci", LinkKind::Pci)])?,
                channels: nccl.count("channels")?,
                channel_bytes: nccl.positive("channel_bytes_per_s")?,
                efficiency: nccl.within("efficiency", 0.01, 1.0)?,
                switch_channel_bytes: nccl.within("switch_channel_bytes_per_s", 0.0, f64::MAX)?,
                network_bytes: nccl.positive("network_bytes_per_s")?,
                compute_slowdown: nccl.within("compute_slowdown", 1.0, f64::MAX)?,
            },
        };
        [whole, gpu, host, copy, nccl].iter().try_for_each(Figures::none_left)?;
        Ok(preset)
    }
}

fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Parses a file's table. Missing keys are taken from the preset that `like` names.
fn with_defaults(text: &str) -> Result<Table, String> {
    let mut table: Table =
        text.parse().map_err(|error: toml::de::Error| format!("is not valid TOML: {error}"))?;
    let Some(like) = table.remove("like") else {
        table.entry("throughput_divided_by").or_insert(Value::Float(1.0));
        table.entry("gpus").or_insert(Value::Integer(8));
        return Ok(table);
    };
    let base = like.as_str().and_then(built_in).ok_or_else(|| {
        let known: Vec<_> = Preset::names().collect();
        format!("like = {}: it must be one of {}", show(&like), known.join(", "))
    })?;
    for (key, default) in with_defaults(base)? {
        match (table.get_mut(&key), default) {
            (Some(Value::Table(own)), Value::Table(default)) => {
                for (key, value) in default {
                    own.entry(key).or_insert(value);
                }
            }
            (Some(_), _) => {}
            (None, default) => drop(table.insert(key, default)),
        }
    }
    Ok(table)
}

/// Formats a value for an error.
fn show(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{text}\""),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(value) => value.to_string(),
        other => other.type_str().to_owned(),
    }
}

/// A section of a file whose keys are removed one by one; any remaining key is unknown.
struct Figures {
    table: Table,
    /// `part.`, the prefix of each key.
    path: String,
}

impl Figures {
    fn part(&mut self, name: &str) -> Result<Self, String> {
        match self.table.remove(name) {
            Some(Value::Table(table)) => Ok(Self { table, path: format!("{name}.") }),
            Some(other) => Err(format!("{name} = {}: it must be a table, [{name}]", show(&other))),
            None => Err(format!("[{name}] is missing")),
        }
    }

    fn take(&mut self, key: &str) -> Result<Value, String> {
        self.table.remove(key).ok_or_else(|| format!("{}{key} is missing", self.path))
    }

    fn within(&mut self, key: &str, least: f64, most: f64) -> Result<f64, String> {
        let value = self.take(key)?;
        let number = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64));
        number.filter(|number| (least..=most).contains(number)).ok_or_else(|| {
            let range = match most == f64::MAX {
                true if least == f64::MIN_POSITIVE => "above 0".to_owned(),
                true => format!("of at least {least}"),
                false => format!("from {least} to {most}"),
            };
            format!("{}{key} = {}: it must be a number {range}", self.path, show(&value))
        })
    }

    fn positive(&mut self, key: &str) -> Result<f64, String> {
        self.within(key, f64::MIN_POSITIVE, f64::MAX)
    }

    fn nanoseconds(&mut self, key: &str) -> Result<u64, String> {
        self.within(key, 0.0, 1e9).map(|number| number as u64)
    }

    /// Reads a whole number of at least 1.
    fn count(&mut self, key: &str) -> Result<f64, String> {
        self.count_to(key, 1e6)
    }

    /// Reads a whole number from 1 to `most`.
    fn count_to(&mut self, key: &str, most: f64) -> Result<f64, String> {
        let number = self.within(key, 1.0, most)?;
        if number.fract() != 0.0 {
            return Err(format!("{}{key} = {number}: it must be a whole number", self.path));
        }
        Ok(number)
    }

    fn text(&mut self, key: &str) -> Result<String, String> {
        match self.take(key)? {
            Value::String(text) if !text.is_empty() => Ok(text),
            other => Err(format!("{}{key} = {}: it must be a nonempty string", self.path, show(&other))),
        }
    }

    fn one_of<T: Copy>(&mut self, key: &str, known: &[(&str, T)]) -> Result<T, String> {
        let value = self.take(key)?;
        let found = known.iter().find(|(name, _)| value.as_str() == Some(name));
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            format!("{}{key} = {}: it must be one of {}", self.path, show(&value), names.join(", "))
        })
    }

    fn none_left(&self) -> Result<(), String> {
        match self.table.keys().next() {
            Some(key) => Err(format!("{}{key}: unknown figure", self.path)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_can_be_read_and_has_its_name() {
        for name in Preset::names() {
            assert_eq!(Preset::find(name).unwrap().name, name);
        }
        let (classroom, dgx) = (Preset::find("classroom").unwrap(), Preset::find("dgx-h100").unwrap());
        assert_eq!(Preset { name: dgx.name.clone(), stands_for: 1.0, ..classroom.clone() }, dgx);
        assert_eq!(classroom.stands_for, 1e4);
    }

    #[test]
    fn a_bad_figure_is_named_with_its_table() {
        let whole = built_in("dgx-h100").unwrap();
        let refused = |from: &str, to: &str| {
            assert!(whole.contains(from), "{from}");
            Preset::from_toml(&whole.replace(from, to)).unwrap_err()
        };
        assert_eq!(refused("memory_bytes_per_s = 3.35e12", ""), "gpu.memory_bytes_per_s is missing");
        assert_eq!(refused("gpus_per_node = 8", ""), "gpus_per_node is missing");
        assert_eq!(refused("[host]", "[other]"), "[host] is missing");
        assert_eq!(
            refused("call_ns = 1000", "call_ns = -1"),
            "host.call_ns = -1: it must be a number from 0 to 1000000000"
        );
        assert_eq!(
            refused("upload_bytes_per_s = 55e9", "upload_bytes_per_s = 0"),
            "copy.upload_bytes_per_s = 0: it must be a number above 0"
        );
        assert_eq!(
            refused("upload_bytes_per_s = 55e9", "upload_bytes_per_s = nan"),
            "copy.upload_bytes_per_s = NaN: it must be a number above 0"
        );
        assert_eq!(
            refused("latency_ns = 1500", "latency_ns = 1500\nlatency = 3"),
            "copy.latency: unknown figure"
        );
        assert_eq!(
            refused("link = \"nvlink\"", "link = \"usb\""),
            "nccl.link = \"usb\": it must be one of nvlink, pci"
        );
        assert_eq!(
            refused("channels = 18", "channels = 1.5"),
            "nccl.channels = 1.5: it must be a whole number"
        );
        assert!(
            Preset::from_toml("name = ")
                .unwrap_err()
                .starts_with("is not valid TOML: TOML parse error at line 1")
        );
        assert!(
            Preset::from_toml("like = \"moon\"")
                .unwrap_err()
                .starts_with("like = \"moon\": it must be one of")
        );
    }

    #[test]
    fn a_file_may_change_single_figures_of_a_preset() {
        let text = "name = \"mine\"\nlike = \"classroom\"\n[nccl]\nchannels = 3\n";
        let (mine, classroom) = (Preset::from_toml(text).unwrap(), Preset::find("classroom").unwrap());
        assert_eq!((mine.links.channels, mine.stands_for), (3.0, 1e4));
        assert_eq!(mine.copy_latency_ns, classroom.copy_latency_ns);
    }
}
