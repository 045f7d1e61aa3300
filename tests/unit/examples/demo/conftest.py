"""A year of eight flights, with every case that the real table holds."""

import zipfile
from pathlib import Path

import pytest

from examples.demo.dataset import Dataset

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,"
    "carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)
LINES = [
    # an ordinary morning, on time; winter, so New York is five hours behind
    "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z",
    # the same aircraft in the evening, late, arriving after midnight
    "2013,1,1,2150,2100,50,30,2359,31,UA,1546,N14228,EWR,IAH,210,1400,21,0,2013-01-02T02:00:00Z",
    # early, and to an airport that the airports table leaves out
    "2013,1,1,544,545,-1,1004,1022,-18,B6,725,N804JB,JFK,BQN,183,1576,5,45,2013-01-01T10:00:00Z",
    # cancelled, aircraft known and unknown
    "2013,1,2,NA,1630,NA,NA,1815,NA,EV,4308,N18120,EWR,RDU,NA,416,16,30,2013-01-02T21:00:00Z",
    "2013,1,2,NA,1935,NA,NA,2240,NA,AA,791,NA,LGA,DFW,NA,1389,19,35,2013-01-03T00:00:00Z",
    # summer, leaves at midnight of the next day (2400 does happen), and diverted: it arrived, but
    # no delay is known
    "2013,7,4,2400,2300,60,655,559,NA,DL,31,N3759,JFK,IAH,NA,2153,23,0,2013-07-05T03:00:00Z",
    # left and is never reported as arrived
    "2013,7,5,1200,1200,0,NA,1400,NA,DL,32,N3759,JFK,IAH,NA,2153,12,0,2013-07-05T16:00:00Z",
    # scheduled before the flight above, but leaves after it: the aircraft flies against the order
    # of the schedule
    "2013,7,5,1230,1150,40,1430,1410,20,DL,33,N3759,JFK,IAH,150,2153,11,50,2013-07-05T15:00:00Z",
]
AIRPORTS = ["faa,name,lat,lon,alt,tz,dst,tzone", "IAH,Houston,30,-95,97,-6,A,America/Chicago"]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return write_dataset(tmp_path, LINES)


def write_dataset(folder: Path, lines: list[str]) -> Dataset:
    flights, airports = folder / "flights.csv.zip", folder / "airports.csv"
    with zipfile.ZipFile(flights, "w") as archive:
        archive.writestr("flights.csv", "\n".join([HEADER, *lines]) + "\n")
    airports.write_text("\n".join(AIRPORTS) + "\n")
    return Dataset(flights=flights, airports=airports)
