//! The scenarios that come with the lab, by name: each is a test, a lesson and a picture.

macro_rules! scenarios {
    ($($name:literal,)*) => {
        /// Name and script, in the order of the names.
        pub static SCENARIOS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../scenarios/", $name, ".txt"))),)*];
    };
}

scenarios! {
    "election/bully_false_suspicion",
    "election/bully_flapping",
    "election/bully_old_coordinator",
    "election/bully_second_timeout",
    "election/bully_seven",
    "election/bully_split",
    "election/bully_split_quorum",
    "election/chang_roberts_equal_ids",
    "election/chang_roberts_equal_ids_told_apart",
    "election/chang_roberts_former_life",
    "election/chang_roberts_four",
    "election/chang_roberts_stale",
    "election/ring_seven",
    "election/ring_starter_stops",
    "election/ring_two_starters",
    "election/term_chain",
    "election/term_chain_without_prevote",
    "election/term_empty_disk",
    "election/term_five",
    "election/term_flapping",
    "election/term_minority",
    "election/term_old_log",
    "election/term_storm_pause",
    "election/term_vote_durable",
    "election/term_vote_not_durable",
    "mutex/central",
    "mutex/central_empty_disk",
    "mutex/central_holder_stops",
    "mutex/central_lease",
    "mutex/central_lease_pause",
    "mutex/central_lease_slept",
    "mutex/central_restart",
    "mutex/maekawa_deadlock",
    "mutex/maekawa_deadlock_free",
    "mutex/maekawa_empty_disk",
    "mutex/maekawa_nine",
    "mutex/maekawa_overtaken",
    "mutex/maekawa_overtaken_told",
    "mutex/maekawa_voter_restart",
    "mutex/ricart_agrawala_former_life",
    "mutex/ricart_agrawala_four",
    "mutex/ricart_agrawala_loss",
    "mutex/ricart_agrawala_one_way",
    "mutex/ricart_agrawala_stopped",
    "mutex/ricart_agrawala_three",
    "mutex/token_ring_false_suspicion",
    "mutex/token_ring_lost",
    "mutex/token_ring_older_generation",
    "mutex/token_ring_parked",
    "mutex/token_ring_round",
    "mutex/token_ring_same_generation",
    "mutex/token_ring_slow_holder",
    "mutex/token_ring_two_tokens",
}

/// The script of this name.
pub fn script(name: &str) -> Option<&'static str> {
    SCENARIOS.iter().find(|(known, _)| *known == name).map(|(_, script)| *script)
}

/// What a script teaches: the sentence that it begins with.
pub fn sentence(script: &str) -> &str {
    script.lines().next().unwrap_or_default().trim_start_matches('#').trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_file_is_listed_and_begins_with_its_sentence() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let mut files = Vec::new();
        for family in std::fs::read_dir(&root).unwrap() {
            let family = family.unwrap();
            for file in std::fs::read_dir(family.path()).unwrap() {
                let path = file.unwrap().path();
                let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
                files.push(format!("{}/{stem}", family.file_name().to_string_lossy()));
            }
        }
        files.sort();
        let listed: Vec<_> = SCENARIOS.iter().map(|(name, _)| (*name).to_string()).collect();
        assert_eq!(listed, files);
        for (name, script) in SCENARIOS {
            assert!(script.starts_with("# ") && sentence(script).ends_with(['.', '?']), "{name}");
        }
    }
}
