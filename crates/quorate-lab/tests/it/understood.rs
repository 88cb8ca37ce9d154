//! What a line of a script says is done, or is an error that says what can be said: nothing is passed over.

use quorate_lab::script::play;

/// Why a script cannot be played.
fn why(script: &str) -> String {
    match play(script) {
        Ok(played) => panic!("{script}\nis played:\n{}", played.text),
        Err(why) => why,
    }
}

/// Why a line cannot be obeyed in a world of three.
fn why_of(line: &str) -> String {
    why(&format!("nodes 3 protocol=central\n\n{line}\n"))
}

#[test]
fn a_misspelt_option_is_an_error_that_names_those_that_there_are() {
    let ricart_agrawala = "protocol=ricart-agrawala";
    let why_not = why(&format!("nodes 3 {ricart_agrawala} retyr=30ms\n"));
    let known = ["clock=", "delay=", "detector=", "disk=", "double=", "flaw=", "hold=", "loss=", "order="];
    assert!(why_not.contains("there is no option retyr= here; there are "), "{why_not}");
    for name in known.into_iter().chain(["permissions=", "protocol=", "retry=", "seed="]) {
        assert!(why_not.contains(name), "{name} in {why_not}");
    }
    for (line, wrong, known) in [
        ("network los=5", "los=", "loss="),
        ("clock n1 rate=5ppm jmup=5s", "jmup=", "jump="),
        ("restart n1 dsik=no", "dsik=", "disk="),
        ("view n1,n2 it=2", "it=", "id="),
    ] {
        let why_not = why_of(line);
        assert!(why_not.contains(&format!("there is no option {wrong}")), "{why_not}");
        assert!(why_not.contains(known), "{known} in {why_not}");
    }
    assert!(why_of("heal all=yes").ends_with("heal has no options, and so no all="));
    assert!(why("nodes 3 protocol=central seed=1 seed=2\n").ends_with("it says seed= twice"));
}

#[test]
fn an_option_of_another_protocol_is_not_passed_over() {
    for (protocol, option) in [
        ("central", "retry=30ms"),
        ("central", "election=1s"),
        ("maekawa", "quorum=yes"),
        ("bully", "hold=5ms"),
        ("ring", "ids=1,2,3"),
        ("term", "retry=30ms"),
        ("token-ring idle=park", "rest=5ms"),
        ("token-ring", "retry=30ms"),
    ] {
        let why_not = why(&format!("nodes 3 protocol={protocol} {option}\n"));
        assert!(why_not.contains("there is no option"), "{protocol} {option}: {why_not}");
    }
    play("nodes 3 protocol=token-ring silence=1s retry=30ms\n").unwrap();
}

#[test]
fn an_option_with_a_value_that_it_has_not_says_which_it_has() {
    for (line, expected) in [
        ("protocol=maekawa durable=true", "durable= is no or yes, not true"),
        ("protocol=maekawa form=free", "form= is deadlock-free or basic, not free"),
        ("protocol=token-ring idle=sleep", "idle= is circulate or park, not sleep"),
        ("protocol=bully quorum=1", "quorum= is no or yes, not 1"),
        ("protocol=bully start=now", "start= is wait or elect, not now"),
        ("protocol=term prevote=on", "prevote= is no or yes, not on"),
        ("protocol=term flaw=none", "there is no flaw none; there are "),
        ("protocol=central loss=1001", "loss= is a number of a thousand messages, not 1001"),
        ("protocol=central order=any", "order= is fifo or unordered, not any"),
        ("", "it needs protocol=, which is one of central, "),
    ] {
        let why_not = why(&format!("nodes 3 {line}\n"));
        assert!(why_not.contains(expected), "{why_not}");
    }
}

#[test]
fn times_are_whole_and_no_longer_than_a_day() {
    for (time, expected) in [
        ("18446744073709551615s", "is longer than a day"),
        ("18446744073709551616us", "is not a time such as 10ms"),
        ("86401s", "is longer than a day"),
        ("1.5ms", "is not a time such as 10ms"),
        ("-5ms", "is not a time such as 10ms"),
        ("500us", "is no whole number of ms"),
    ] {
        let why_not = why(&format!("nodes 3 protocol=central lease={time}\n"));
        assert!(why_not.contains(&format!("{time} {expected}")), "{why_not}");
    }
    for range in ["delay=5ms..1ms", "disk=2ms..1ms", "detector=5ms..1ms", "hold=5ms..1ms"] {
        let why_not = why(&format!("nodes 3 protocol=central {range}\n"));
        assert!(why_not.contains("is empty: the lesser time comes first"), "{why_not}");
    }
    let why_not = why("nodes 3 protocol=ricart-agrawala retry=60ms..30ms\n");
    assert!(why_not.contains("60ms..30ms is empty"), "{why_not}");
    play("nodes 3 protocol=central lease=86400s\n").unwrap();
    play("nodes 3 protocol=central delay=tailed:1ms..86400s\n\ncall n2 enter\nrun\n").unwrap();
}

#[test]
fn a_command_that_cannot_be_obeyed_says_what_can() {
    for (line, expected) in [
        ("fly n1", "there is no command fly; there are nodes, call, deliver"),
        ("storm", "storm is not for this protocol"),
        ("crash", "it needs more words: crash n1 [after persist | after EFFECTS]"),
        ("call n1 enter now", "now is one word too many: call n1 enter"),
        ("nodes 3 4 protocol=central", "4 is one word too many: nodes N protocol=NAME"),
        ("heal n1", "n1 is one word too many: heal"),
        ("crash n9", "there is no n9"),
        ("call n1 sleep", "there is no call sleep; there are enter, leave"),
        ("deliver n1->n2", "no such message is under way"),
        ("deliver n1->n1", "n1->n1 is no link"),
        ("deliver n1->n2 #0", "#0 is no place: the oldest is #1"),
        ("deliver n1->n2 TOKEN", "TOKEN is no sort of message; there are REQUEST, GRANT"),
        ("fire n1 lease", "n1 has no timer lease running; of its timers none runs"),
        ("cut n1->n1", "n1->n1 is no link"),
        ("clock n1", "a clock takes jump=10s, rate=200ppm, or both"),
        ("clock n1 rate=-2000000ppm", "is not a rate such as 200ppm"),
        ("partition n1 n2", "a partition has sides"),
        ("partition n1 | ", "a partition has sides"),
        ("partition n1 | n1 n2", "n1 cannot be on both sides"),
    ] {
        let why_not = why_of(line);
        assert!(why_not.contains(expected), "{line}: {why_not}");
    }
    let long = why(&"a".repeat(1_000_000));
    assert!(long.len() < 400, "{} characters of a line of a million", long.len());
}

#[test]
fn a_script_that_goes_on_for_ever_is_given_up() {
    let for_ever = "nodes 3 protocol=ricart-agrawala retry=0ms loss=1000\n\ncall n2 enter\n";
    assert!(why(&format!("{for_ever}run\n")).contains("say for how long, such as run 100ms"));
    assert!(why(&format!("{for_ever}run 1s\n")).contains("the most of one run"));
}
