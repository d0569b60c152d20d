"""Which hosts are push services."""

import pytest

from pushops.subscriptions.hosts import DEFAULT_RULES, HostRule, host_fault, match, parse_host_rules


@pytest.mark.parametrize(
    ("host", "service"),
    [
        ("fcm.googleapis.com", "fcm"),
        ("jmt17.google.com", "fcm"),
        ("jmt0.google.com", "fcm"),
        ("updates.push.services.mozilla.com", "mozilla"),
        ("web.push.apple.com", "apple"),
        ("a.b.push.apple.com", "apple"),
        ("wns2-par02p.notify.windows.com", "wns"),
    ],
)
def test_the_vendors_hosts_are_known(host: str, service: str) -> None:
    rule = match(host, DEFAULT_RULES)
    assert rule is not None
    assert (rule.service, rule.refused) == (service, None)


@pytest.mark.parametrize(
    "host",
    [
        "fcm.googleapis.com.evil.test",
        "evilfcm.googleapis.com",
        "x.fcm.googleapis.com",
        "push.apple.com",
        "evilpush.apple.com",
        "web.push.apple.com.evil.test",
        "notify.windows.com",
        ".notify.windows.com",
        "xnotify.windows.com",
        "jmt.google.com",
        "jmt1x.google.com",
        "jmt-1.google.com",
        "jmt\u0661.google.com",
        "jmt1.google.com.evil.test",
        "jmt1.x.google.com",
        "xn--fcm-googleapis.com",
        "",
    ],
)
def test_a_neighbour_of_a_pattern_is_no_match(host: str) -> None:
    assert match(host, DEFAULT_RULES) is None


def test_a_dead_service_is_a_rule_with_its_reason() -> None:
    rule = match("android.googleapis.com", DEFAULT_RULES)
    assert rule is not None
    assert rule.refused == "dead_service"


def test_the_most_specific_rule_wins_wherever_it_stands() -> None:
    rules = (
        HostRule("*.b.org", "short"),
        HostRule("*.a.b.org", "long"),
        HostRule("x#.a.b.org", "digits"),
        HostRule("x1.a.b.org", "exact"),
    )
    found = [match(host, order) for order in (rules, rules[::-1]) for host in ("y.b.org", "y.a.b.org", "x2.a.b.org")]
    assert [rule and rule.service for rule in found] == ["short", "long", "digits"] * 2
    assert match("x1.a.b.org", rules) == rules[3]


def test_an_operators_wide_suffix_does_not_revive_a_dead_service() -> None:
    rule = match("android.googleapis.com", (*parse_host_rules({"*.googleapis.com": "mine"}), *DEFAULT_RULES))
    assert rule is not None
    assert rule.refused == "dead_service"


def test_an_operators_rule_stands_before_ours() -> None:
    rule = match("fcm.googleapis.com", (*parse_host_rules({"fcm.googleapis.com": "mine"}), *DEFAULT_RULES))
    assert rule is not None
    assert rule.service == "mine"


def test_an_operators_patterns_become_rules() -> None:
    mapping = {"up.conversations.im": "unifiedpush", "*.push.example.org": "ntfy", "node#.push.test": "sandbox"}
    assert parse_host_rules(mapping) == tuple(HostRule(*pair) for pair in mapping.items())


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("https://ntfy.example.org", "without a scheme"),
        ("ntfy.example.org:8443", "without a port"),
        ("ntfy.example.org/up", "letters, digits"),
        ("user@ntfy.example.org", "letters, digits"),
        ("Ntfy.example.org", "lower case"),
        ("ntfy.example.org.", "no dot at the end"),
        ("*", "first label"),
        ("*.", "two labels"),
        ("*.org", "two labels"),
        ("*ntfy.example.org", "first label"),
        ("ntfy.*.org", "first label"),
        ("*.ntfy.*.org", "first label"),
        ("*.node#.example.org", "not together"),
        ("a#b#.example.org", "at most once"),
        ("#", "IP address"),
        ("10.0.0.#", "IP address"),
        ("10.0.0.5", "IP address"),
        ("*.0.0.5", "IP address"),
        ("2130706433", "IP address"),
        ("0x7f000001", "IP address"),
        ("[::1]", "IP address"),
        ("::1", "IP address"),
        ("permanently-removed.invalid", "outside .invalid"),
        ("*.removed.invalid", "outside .invalid"),
        ("invalid", "outside .invalid"),
        ("", "a host"),
        (" ntfy.example.org", "letters, digits"),
        ("m\u00fcnchen.example", "letters, digits"),
        ("a..b.org", "letters, digits"),
        ("-a.b.org", "letters, digits"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_named_with_what_was_expected(pattern: str, fault: str) -> None:
    with pytest.raises(ValueError, match=f"host pattern .*expected .*{fault}") as raised:
        parse_host_rules({"ntfy.example.net": "ntfy", pattern: "mine"})
    assert repr(pattern) in str(raised.value)


@pytest.mark.parametrize("service", ["", "Ntfy", "a b", "9a", "a" * 33, 'x"}', "a\n"])
def test_a_service_label_must_do_as_a_metric_label(service: str) -> None:
    with pytest.raises(ValueError, match="expected a service label"):
        parse_host_rules({"ntfy.example.net": service})


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"scheme.*IP address.*service label"):
        parse_host_rules({"https://a.b": "mine", "10.0.0.1": "mine", "ntfy.example.net": "No"})


@pytest.mark.parametrize("host", ["a" * 64 + ".org", "a." * 126 + "org", "a_b.org", "a%2eb.org", "-a.org", "a-.org"])
def test_what_no_resolver_would_take_is_a_bad_host(host: str) -> None:
    assert host_fault(host) == "bad_host"


def test_the_longest_host_is_a_host() -> None:
    assert host_fault("a." * 125 + "org") is None
