//! `NCCL_ALGO` and `NCCL_PROTO`: what the user allows NCCL to choose from, parsed as NCCL parses it (`parseList` in
//! `graph/tuning.cc`, NCCL 2.30).

use std::sync::OnceLock;

use super::tuning::{ALGORITHMS, Algorithm, FUNCTIONS, Function, PROTOCOLS, Protocol};

/// Algorithms that NCCL knows but that no modeled node can use.
const OTHER_ALGORITHMS: [&str; 3] = ["CollNetDirect", "CollNetChain", "PAT"];

/// The enabled algorithms and protocols for each function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enabled {
    algorithms: [[bool; ALGORITHMS.len()]; FUNCTIONS.len()],
    protocols: [[bool; PROTOCOLS.len()]; FUNCTIONS.len()],
    /// The values of the two variables.
    given: [Option<String>; 2],
}

impl Default for Enabled {
    /// Enables everything.
    fn default() -> Self {
        let (algorithms, protocols) = (Default::default(), Default::default());
        let mut all = Self { algorithms, protocols, given: [None, None] };
        all.algorithms.as_flattened_mut().fill(true);
        all.protocols.as_flattened_mut().fill(true);
        all
    }
}

impl Enabled {
    /// Reads the environment, once.
    ///
    /// # Errors
    /// Returns NCCL's message, preceded by the variable's name.
    pub fn from_env() -> Result<&'static Self, &'static str> {
        static ENABLED: OnceLock<Result<Enabled, String>> = OnceLock::new();
        let enabled = ENABLED.get_or_init(|| {
            let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
            Self::parse(variable("NCCL_ALGO").as_deref(), variable("NCCL_PROTO").as_deref())
        });
        enabled.as_ref().map_err(String::as_str)
    }

    /// Parses the values of the two variables, as [`Self::from_env`] does.
    pub(crate) fn parse(algorithms: Option<&str>, protocols: Option<&str>) -> Result<Self, String> {
        let mut enabled =
            Self { given: [algorithms, protocols].map(|value| value.map(str::to_owned)), ..Self::default() };
        if let Some(text) = algorithms {
            parse_list(
                "NCCL_ALGO",
                text,
                &ALGORITHMS.map(|(name, _)| name),
                &OTHER_ALGORITHMS,
                &mut enabled.algorithms,
            )?;
        }
        if let Some(text) = protocols {
            parse_list("NCCL_PROTO", text, &PROTOCOLS.map(|(name, _)| name), &[], &mut enabled.protocols)?;
        }
        Ok(enabled)
    }

    pub(crate) fn allows(&self, function: Function, algorithm: Algorithm, protocol: Protocol) -> bool {
        self.algorithms[function as usize][algorithm as usize]
            && self.protocols[function as usize][protocol as usize]
    }

    /// Returns the message for a function that has no choice left.
    pub fn none_left(&self, function: Function, data_type: &str) -> String {
        let name = FUNCTIONS[function as usize].0;
        let mut text =
            format!("no algorithm/protocol available for function {name} with datatype {data_type}.");
        for (variable, value) in ["NCCL_ALGO", "NCCL_PROTO"].iter().zip(&self.given) {
            if let Some(value) = value {
                text.push_str(&format!(" {variable} was set to {value}."));
            }
        }
        text
    }
}

/// Parses `[function:][^]name,name;function:[^]name`. Only the first entry may omit the function; it then applies to
/// all functions. `^` means all names except the listed ones. Names are case-insensitive.
fn parse_list<const N: usize>(
    variable: &str,
    text: &str,
    names: &[&str; N],
    others: &[&str],
    into: &mut [[bool; N]; FUNCTIONS.len()],
) -> Result<(), String> {
    for (at, entry) in text.split(';').filter(|entry| !entry.is_empty()).enumerate() {
        let (function, list) = match entry.split_once(':') {
            Some((function, list)) => (Some(function), list),
            None if at > 0 => {
                return Err(format!(
                    "{variable}: All entries except the first must have a prefix: \"{text}\""
                ));
            }
            None => (None, entry),
        };
        let (list, set) = list.strip_prefix('^').map_or((list, true), |list| (list, false));
        let mut row = [!set; N];
        for element in list.split(',').filter(|element| !element.is_empty()) {
            match names.iter().position(|name| name.eq_ignore_ascii_case(element)) {
                Some(index) => row[index] = set,
                None if others.iter().any(|other| other.eq_ignore_ascii_case(element)) => {}
                None => {
                    return Err(format!(
                        "{variable}: Unrecognized element token \"{element}\" when parsing \"{text}\""
                    ));
                }
            }
        }
        let is_meant = |name: &str| function.is_none_or(|function| function.eq_ignore_ascii_case(name));
        let mut found = false;
        for (_, of_function) in FUNCTIONS.iter().zip(into.iter_mut()).filter(|((name, _), _)| is_meant(name))
        {
            *of_function = row;
            found = true;
        }
        if !found {
            let function = function.unwrap_or_default();
            return Err(format!(
                "{variable}: Unrecognized prefix token \"{function}\" when parsing \"{text}\""
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str, function: Function) -> Vec<&'static str> {
        let enabled = Enabled::parse(Some(text), None).unwrap();
        let is_on = |algorithm| enabled.allows(function, algorithm, Protocol::Simple);
        ALGORITHMS.iter().filter(|(_, algorithm)| is_on(*algorithm)).map(|(name, _)| *name).collect()
    }

    #[test]
    fn lists_are_parsed_as_nccl_s_comment_describes() {
        assert_eq!(allowed("ring", Function::AllReduce), ["Ring"]);
        assert_eq!(allowed("^Tree,NVLS", Function::AllGather), ["Ring", "NVLSTree"]);
        let text = "ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring";
        assert_eq!(allowed(text, Function::AllReduce), ["Tree"]);
        assert_eq!(allowed(text, Function::Reduce), ["Ring"]);
        assert_eq!(allowed("AllReduce:^Ring", Function::Broadcast).len(), ALGORITHMS.len());
    }

    #[test]
    fn unknown_words_are_refused_with_nccl_s_message() {
        let error = |text| Enabled::parse(Some(text), None).unwrap_err();
        assert_eq!(error("Rng"), "NCCL_ALGO: Unrecognized element token \"Rng\" when parsing \"Rng\"");
        assert_eq!(
            error("AllReduse:Ring"),
            "NCCL_ALGO: Unrecognized prefix token \"AllReduse\" when parsing \"AllReduse:Ring\""
        );
        assert!(error("Ring;Tree").contains("All entries except the first must have a prefix"));
        let error = Enabled::parse(None, Some("LL64")).unwrap_err();
        assert!(error.starts_with("NCCL_PROTO: Unrecognized element token \"LL64\""));
    }

    #[test]
    fn the_message_for_an_empty_choice_names_what_was_set() {
        let enabled = Enabled::parse(Some("Tree"), Some("LL")).unwrap();
        assert_eq!(
            enabled.none_left(Function::AllGather, "ncclFloat32"),
            "no algorithm/protocol available for function AllGather with datatype ncclFloat32. NCCL_ALGO was set to \
             Tree. NCCL_PROTO was set to LL."
        );
    }
}
