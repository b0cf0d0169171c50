"""Spark's functions: those that a query may use, and the reasons against the others."""

from __future__ import annotations

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALLOWED: Final = _names(
    """
    abs acos acosh add_months aes_decrypt aggregate and approx_top_k_estimate array array_append array_compact
    array_contains array_distinct array_except array_insert array_intersect array_join array_max array_min
    array_position array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap
    arrays_zip ascii asin asinh assert_true atan atan2 atanh base64 between bigint bin binary bit_count bit_get
    bit_length bitmap_bit_position bitmap_bucket_number bitmap_count boolean bround btrim cardinality cast cbrt ceil
    ceiling char char_length character_length chr coalesce collate collation concat concat_ws contains conv
    convert_timezone cos cosh cot crc32 csc date date_add date_diff date_format date_from_unix_date date_part
    date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear decimal decode degrees
    div double e element_at elt encode endswith equal_null exists exp expm1 extract factorial filter find_in_set
    flatten float floor forall format_number format_string from_base32 from_csv from_json from_unixtime
    from_utc_timestamp from_xml get get_json_object getbit greatest hash hex hll_sketch_estimate hll_union hmac hour
    hypot if ifnull ilike in initcap instr int is_valid_utf8 is_valid_variant is_variant_null isnan isnotnull isnull
    jaro_winkler_similarity json_array_length json_object_keys kll_sketch_get_n_bigint kll_sketch_get_n_double
    kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
    kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
    kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint
    kll_sketch_to_string_double kll_sketch_to_string_float last_day lcase least left len length levenshtein like ln
    locate log log10 log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval make_interval make_time
    make_timestamp make_timestamp_ltz make_timestamp_ntz make_valid_utf8 make_ym_interval map
    map_contains_key map_entries map_filter map_keys map_values map_zip_with mask
    md5 minute mod month monthname months_between named_struct nanvl negative next_day not nullif nullifzero nvl
    nvl2 octet_length or overlay parse_json parse_url pi pmod position positive pow power printf quarter quote
    radians raise_error reduce regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like
    regexp_replace regexp_substr repeat replace reverse right rint rlike round rpad rtrim schema_of_csv
    schema_of_json schema_of_variant schema_of_xml sec second sentences sequence sha sha1 sha2 shiftleft shiftright
    shiftrightunsigned sign signum sin sinh size slice smallint sort_array soundex space split split_part sqrt
    st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid startswith string struct substr
    substring substring_index tan tanh theta_difference theta_intersection theta_sketch_estimate theta_union time
    time_bucket time_diff time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis
    time_to_seconds time_trunc timestamp timestamp_micros timestamp_millis timestamp_nanos timestamp_seconds tinyint
    to_base32 to_binary to_char to_csv to_date to_json to_number to_time to_timestamp to_timestamp_ltz
    to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar to_variant_object to_xml transform
    transform_values translate trim trunc try_add try_aes_decrypt try_divide try_element_at try_make_interval
    try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply try_parse_json
    try_parse_url try_subtract try_to_binary try_to_date try_to_number try_to_time try_to_timestamp try_url_decode
    try_validate_utf8 try_variant_array_append try_variant_get try_variant_insert try_variant_set
    tuple_difference_double tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer
    tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double
    tuple_intersection_theta_integer tuple_sketch_estimate_double tuple_sketch_estimate_integer
    tuple_sketch_summary_double tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer
    tuple_union_double tuple_union_integer tuple_union_theta_double tuple_union_theta_integer typeof ucase unbase64
    unhex unix_date unix_micros unix_millis unix_nanos unix_seconds upper url_decode url_encode validate_utf8
    variant_array_append variant_delete variant_get variant_insert variant_set variant_strip_nulls vector_avg
    vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm vector_normalize vector_sum weekday
    weekofyear when width_bucket xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number
    xpath_short xpath_string xxhash64 year zeroifnull zip_with
    """
)
"""Functions that give the same result for the same record at any time and on any machine."""
_SEVERAL: Final = _names(
    """
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
    array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or
    collect_list collect_set collect_union corr count count_if count_min_sketch counter_diff covar_pop covar_samp
    cume_dist dense_rank every first first_value grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg
    kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double
    kll_sketch_agg_float kurtosis lag last last_value lead listagg max max_by mean measure median min min_by mode
    nth_value ntile percent_rank percentile percentile_approx percentile_cont percentile_disc rank regr_avgx
    regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy row_number
    schema_of_variant_agg skewness some std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg
    theta_sketch_agg theta_union_agg try_avg try_sum tuple_intersection_agg_double tuple_intersection_agg_integer
    tuple_sketch_agg_double tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer var_pop var_samp
    variance
    """
)
_ROWS: Final = _names(
    """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack
    collations python_worker_logs range sql_keywords variant_explode variant_explode_outer
    """
)
_RANDOM: Final = _names(
    """
    aes_encrypt rand randn random randstr shuffle uniform uuid
    """
)
_CLOCK: Final = _names(
    """
    curdate current_date current_time current_timestamp localtime localtimestamp now unix_timestamp
    """
)
_OUTSIDE: Final = _names(
    """
    current_catalog current_database current_path current_schema current_timezone current_user from_avro
    from_protobuf input_file_block_length input_file_block_start input_file_name java_method
    monotonically_increasing_id reflect schema_of_avro session_user session_window spark_partition_id to_avro
    to_protobuf try_reflect user version window window_time
    """
)
_KEYS: Final = _names("map_concat map_from_arrays map_from_entries str_to_map transform_keys")
_REFUSED: Final = (
    (_SEVERAL, "looks at several records", "a query sees one record at a time: count and sum behind the destination"),
    (
        _ROWS,
        "makes several rows of one",
        "put the processor split after it, which makes a record of each item of a list",
    ),
    (_RANDOM, "gives something else each time", "derive it from the record: sha2(...), hash(...)"),
    (_CLOCK, "gives something else each time", "set the time before, in field.set, by the expression now"),
    # for a duplicate key Spark raises but keeps the map built so far, and the next record would get it
    (_KEYS, "may give the same key twice", "use map with keys that are written out, or named_struct"),
    (_OUTSIDE, "looks beyond the record", "use what the record holds"),
)
REFUSED: Final = frozenset().union(*(names for names, _, _ in _REFUSED))
"""All functions of Spark that a query may not use."""


NO_FUNCTIONS: Final = _names(
    """
    all and array as between by case char dec decimal distinct div else escape except from ilike in interval is like map
    not numeric on or regexp rlike select struct then varchar when where
    """
)
"""Words that may be followed by a parenthesis without being a function call."""


def refusal(name: str) -> tuple[str, str] | None:
    """Return why a function may not be used and what to use instead; None if it is not a refused function."""
    return next((((why, fix)) for names, why, fix in _REFUSED if name in names), None)
